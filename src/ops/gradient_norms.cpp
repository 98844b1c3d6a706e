// block_gradient_norms. On the CPU it computes some block rows of dW at a time by the kernels of dW, as the
// stored blocks of a full index, and reduces them while they are cached.
#include "sparseloom/gradient_norms.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "core/check.h"
#include "kernels/bsr_linear/cuda/gradient_norms.h"
#include "ops/call.h"
#include "ops/checks.h"
#include "pattern/grid.h"
#include "sparseloom/generic/parallel.h"
#include "sparseloom/ops.h"

namespace sparseloom {
namespace {

constexpr const char* kOp = "block_gradient_norms";
constexpr std::size_t kAlignment = 64;

// Elements of the gradient that exist at a time: 16 MiB of fp32. Each strip repacks its operands, which costs
// more than the L2 misses that lower strips would avoid (the log has times).
constexpr std::int64_t kStripElements = std::int64_t{1} << 22;

void check_operands(const ConstMatrixView& dy, const ConstMatrixView& x) {
  ops::require_matrix(kOp, dy);
  ops::require_matrix(kOp, x);
  if (dy.rows != x.rows)
    core::fail(kOp, "grad_output with input's " + std::to_string(x.rows) + " rows", std::to_string(dy.rows),
               "pass the gradient of this input's output");
  if (dy.dtype != x.dtype)
    core::fail(kOp, std::string("grad_output of input's dtype ") + name_of(x.dtype), name_of(dy.dtype),
               "convert one of them");
  if (x.dtype != DType::f32 && x.dtype != DType::f16 && x.dtype != DType::bf16)
    core::fail(kOp, "operands of f32, f16 or bf16", name_of(x.dtype), "convert them with .float()");
}

// The norm of a block of the gradient, whose rows are `cols` long. Lanes of fp32 add up a row, fp64 the rows:
// block_scores, which adds in fp64 only, took a sixth of the product's time.
template <BlockNorm kNorm>
float norm_of(const float* block, int rows, int cols) {
  constexpr int kLanes = 8;  // divides every block side
  if constexpr (kNorm == BlockNorm::max) {
    // As integers, magnitudes are ordered alike, and NaN is above them all.
    std::int32_t most[kLanes] = {};
    for (int i = 0; i < rows * cols; i += kLanes)
      for (int k = 0; k < kLanes; ++k)
        most[k] = std::max(most[k], std::bit_cast<std::int32_t>(block[i + k]) & 0x7fffffff);
    return std::bit_cast<float>(*std::max_element(most, most + kLanes));
  }
  double sum = 0;
  for (int r = 0; r < rows; ++r, block += cols) {
    float lanes[kLanes] = {};
    for (int i = 0; i < cols; i += kLanes)
      for (int k = 0; k < kLanes; ++k)
        lanes[k] += kNorm == BlockNorm::l2 ? block[i + k] * block[i + k] : std::fabs(block[i + k]);
    for (const float lane : lanes) sum += static_cast<double>(lane);
  }
  return static_cast<float>(kNorm == BlockNorm::l2 ? std::sqrt(sum) : sum);
}

float norm_of(BlockNorm norm, const float* block, BlockShape shape) {
  switch (norm) {
    case BlockNorm::l1: return norm_of<BlockNorm::l1>(block, shape.rows, shape.cols);
    case BlockNorm::l2: return norm_of<BlockNorm::l2>(block, shape.rows, shape.cols);
    case BlockNorm::max: break;
  }
  return norm_of<BlockNorm::max>(block, shape.rows, shape.cols);
}

// Some block rows of dW with all their blocks, and the plan that computes them.
class Strip {
 public:
  Strip(const ConstMatrixView& dy, const ConstMatrixView& x, BlockShape block, std::int64_t block_rows,
        std::int64_t rows, const Executor& executor)
      : crow_(static_cast<std::size_t>(block_rows) + 1) {
    const std::int64_t across = core::ceil_div(x.cols, std::int64_t{block.cols});
    col_.resize(static_cast<std::size_t>(block_rows * across));
    for (std::size_t r = 0; r < crow_.size(); ++r)
      crow_[r] = static_cast<std::int32_t>(static_cast<std::int64_t>(r) * across);
    for (std::size_t i = 0; i < col_.size(); ++i)
      col_[i] = static_cast<std::int32_t>(static_cast<std::int64_t>(i) % across);
    index_ = {rows, x.cols, block, block_rows * across, crow_.data(), col_.data()};
    Problem problem = describe(index_, x.dtype, Direction::dw, x.rows);
    problem.accumulate = true;  // into fp32, so that sums of 16-bit operands are not rounded
    problem.aligned = is_aligned(dy) && is_aligned(x);
    plan_ = make_plan(problem, index_, executor);
  }

  std::size_t value_bytes() const {
    return core::round_up(index_.blocks * index_.block_elements() * 4, std::int64_t{kAlignment});
  }
  std::size_t bytes() const { return value_bytes() + plan_->workspace_bytes; }

  // Scores the strip's blocks, whose rows are dy's columns.
  void score(const ConstMatrixView& dy, const ConstMatrixView& x, BlockNorm norm, float* norms,
             std::span<std::byte> workspace, const Executor& executor) const {
    const std::int64_t elements = index_.block_elements();
    auto* values = reinterpret_cast<float*>(workspace.data());
    runtime::parallel_for(executor, index_.blocks, [&](std::int64_t begin, std::int64_t end) {
      std::memset(values + begin * elements, 0, static_cast<std::size_t>((end - begin) * elements) * 4);
    });
    linear_dw(*plan_, dy, x, index_, values, workspace.subspan(value_bytes()), executor);
    runtime::parallel_tasks(executor, index_.blocks, [&](std::int64_t i) {
      norms[i] = norm_of(norm, values + i * elements, index_.block);
    });
  }

 private:
  std::vector<std::int32_t> crow_, col_;
  IndexView index_;
  std::shared_ptr<const Plan> plan_;
};

// The number of block rows of a strip.
std::int64_t strip_height(std::int64_t block_rows, std::int64_t cols, BlockShape block) {
  const std::int64_t elements = std::max<std::int64_t>(1, block.rows * cols);
  return std::clamp<std::int64_t>(kStripElements / elements, 1, block_rows);
}

ConstMatrixView columns_of(const ConstMatrixView& matrix, std::int64_t first, std::int64_t count) {
  const auto offset = static_cast<std::size_t>(first) * size_of(matrix.dtype);
  return {static_cast<const std::byte*>(matrix.data) + offset, matrix.dtype, matrix.rows, count,
          matrix.stride};
}

void score_on_cpu(const ConstMatrixView& dy, const ConstMatrixView& x, BlockShape block, BlockNorm norm,
                  std::span<float> norms, std::span<std::byte> workspace, const Executor& executor) {
  const pattern::Grid grid = pattern::require_grid(kOp, dy.cols, x.cols, block);
  const std::int64_t height = strip_height(grid.rows, x.cols, block);
  std::unique_ptr<const Strip> strip;
  std::int64_t made_for = 0;
  for (std::int64_t top = 0; top < grid.rows; top += height) {
    const std::int64_t first = top * block.rows, rows = std::min(height * block.rows, dy.cols - first);
    const ConstMatrixView part = columns_of(dy, first, rows);
    if (rows != made_for) {  // all strips but the last have equal heights
      const std::int64_t block_rows = std::min(height, grid.rows - top);
      strip = std::make_unique<const Strip>(part, x, block, block_rows, rows, executor);
      made_for = rows;
    }
    strip->score(part, x, norm, norms.data() + top * grid.cols, workspace, executor);
  }
}

void score_on_gpu([[maybe_unused]] const ConstMatrixView& dy, [[maybe_unused]] const ConstMatrixView& x,
                  [[maybe_unused]] BlockShape block, [[maybe_unused]] BlockNorm norm,
                  [[maybe_unused]] std::span<float> norms, const Executor& executor) {
  [[maybe_unused]] const runtime::CudaDevice& device = ops::require_gpu(kOp, executor);
#ifdef SPARSELOOM_HAVE_CUDA
  const runtime::CudaDeviceScope scope(executor.device);
  kernels::cuda::GradientNorms call{dy, x, block, norm, norms.data(), executor.device, executor.stream};
  call.dy.stride = ops::row_distance(dy), call.x.stride = ops::row_distance(x);
  const std::int64_t most = std::numeric_limits<std::int32_t>::max();
  const bool hopper = device.sm == 90 && size_of(x.dtype) == 2 && x.rows > 0 && is_aligned(dy) &&
                      is_aligned(x) && dy.cols <= most && x.cols <= most;
  ops::require_queued(
      kOp, hopper ? kernels::cuda::sm90_gradient_norms(call) : kernels::cuda::sm80_gradient_norms(call),
      executor);
#endif
}

}  // namespace

std::size_t block_gradient_norms_workspace(const ConstMatrixView& dy, const ConstMatrixView& x,
                                           BlockShape block, const Executor& executor) {
  check_operands(dy, x);
  const pattern::Grid grid = pattern::require_grid(kOp, dy.cols, x.cols, block);
  if (executor.device >= 0 || grid.cells() == 0) return 0;
  const std::int64_t height = strip_height(grid.rows, x.cols, block), last = grid.rows % height;
  const auto bytes_of = [&](std::int64_t top, std::int64_t block_rows) {
    const std::int64_t first = top * block.rows, rows = std::min(block_rows * block.rows, dy.cols - first);
    return Strip(columns_of(dy, first, rows), x, block, block_rows, rows, executor).bytes();
  };
  std::size_t bytes = bytes_of(0, height);
  if (last != 0 || dy.cols % block.rows != 0) {
    const std::int64_t block_rows = last == 0 ? height : last;
    bytes = std::max(bytes, bytes_of(grid.rows - block_rows, block_rows));
  }
  return bytes;
}

void block_gradient_norms(const ConstMatrixView& dy, const ConstMatrixView& x, BlockShape block,
                          BlockNorm norm, std::span<float> norms, std::span<std::byte> workspace,
                          const Executor& executor) {
  const std::size_t bytes = block_gradient_norms_workspace(dy, x, block, executor);
  const pattern::Grid grid = pattern::require_grid(kOp, dy.cols, x.cols, block);
  if (static_cast<std::int64_t>(norms.size()) != grid.cells())
    core::fail(kOp,
               std::to_string(grid.cells()) + " norms, one for each block of the grid " +
                   core::shape(grid.rows, grid.cols),
               std::to_string(norms.size()), "size the output as block rows * block columns");
  if (!ops::lends(workspace, bytes, kAlignment))
    core::fail(kOp, std::to_string(bytes) + " bytes of workspace, aligned to 64",
               std::to_string(workspace.size()) + " bytes", "lend them from an aligned allocation");
  core::require_known(kOp, "norm", norm, BlockNorm::max);
  if (grid.cells() == 0) return;
  core::require_memory(kOp, {{"norms", norms.data()}});
  if (executor.device >= 0) return score_on_gpu(dy, x, block, norm, norms, executor);
  score_on_cpu(dy, x, block, norm, norms, workspace, executor);
}

}  // namespace sparseloom
