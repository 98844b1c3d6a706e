// Pruning and packing at once.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "core/check.h"
#include "layout/semi24.h"
#include "ops/checks.h"
#include "ops/semi24_rows.h"
#include "sparseloom/semi24_ops.h"
#ifdef SPARSELOOM_HAVE_CUDA
#include "kernels/semi24_linear/sm80/entries.h"
#include "runtime/cuda.h"
#endif

namespace sparseloom {
namespace {

constexpr const char* kOp = "semi24_compress";

/// w where the mask is set, zero elsewhere, with contiguous rows; or its transpose. A task's rows are columns
/// of the transpose, so that no two tasks write the same element.
std::vector<std::byte> masked(const ConstMatrixView& w, const bool* mask, bool transposed,
                              const Executor& executor) {
  const std::size_t size = size_of(w.dtype);
  std::vector<std::byte> masked_values(static_cast<std::size_t>(w.rows * w.cols) * size);
  ops::for_rows(executor, w.rows, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r)
      for (std::int64_t c = 0; c < w.cols; ++c)
        if (mask[r * w.cols + c]) {
          const auto to = static_cast<std::size_t>(transposed ? c * w.rows + r : r * w.cols + c);
          const auto from = static_cast<std::size_t>(r * w.stride + c);
          std::memcpy(masked_values.data() + to * size, static_cast<const std::byte*>(w.data) + from * size,
                      size);
        }
  });
  return masked_values;
}

/// bits [rows, ceil(cols / 8)] <- the mask, the lowest column lowest.
void pack_mask(const bool* mask, std::int64_t rows, std::int64_t cols, std::uint8_t* bits,
               const Executor& executor) {
  const std::int64_t row_bytes = core::ceil_div(cols, std::int64_t{8});
  ops::for_rows(executor, rows, [&](std::int64_t begin, std::int64_t end) {
    std::fill(bits + begin * row_bytes, bits + end * row_bytes, std::uint8_t{0});
    for (std::int64_t r = begin; r < end; ++r)
      for (std::int64_t c = 0; c < cols; ++c)
        bits[r * row_bytes + c / 8] |=
            static_cast<std::uint8_t>(static_cast<unsigned>(mask[r * cols + c]) << (c % 8));
  });
}

void compress_on_host(const ConstMatrixView& w, Semi24Pruning pruning, const Semi24Compressed& out,
                      const Executor& executor) {
  const auto mask = std::make_unique<bool[]>(static_cast<std::size_t>(w.rows * w.cols));
  semi24_prune(w, pruning, mask.get(), executor);
  pack_mask(mask.get(), w.rows, w.cols, out.mask, executor);
  const auto pack = [&](bool transposed, std::int64_t rows, std::int64_t cols, void* values,
                        std::uint8_t* positions) {
    const std::vector<std::byte> masked_values = masked(w, mask.get(), transposed, executor);
    semi24_pack({masked_values.data(), w.dtype, rows, cols, cols}, values, positions, executor);
  };
  pack(false, w.rows, w.cols, out.values, out.positions);
  if (out.transposed_values != nullptr)
    pack(true, w.cols, w.rows, out.transposed_values, out.transposed_positions);
}

}  // namespace

void semi24_compress(const ConstMatrixView& w, Semi24Pruning pruning, const Semi24Compressed& out,
                     const Executor& executor) {
  ops::require_matrix(kOp, w);
  core::require_known(kOp, "pruning", pruning, Semi24Pruning::transposable_exact);
  if ((out.transposed_values == nullptr) != (out.transposed_positions == nullptr))
    core::fail(kOp, "values and positions of W^T, or neither", "one of them", "pass both, or null for both");
  if (out.transposed_values != nullptr && pruning == Semi24Pruning::magnitude)
    core::fail(kOp, "a transposable pruning for W^T", "magnitude",
               "prune with transposable_greedy or transposable_exact");
  const bool on_cpu = executor.device < 0;
  if (is_scaled(w.dtype) || (!on_cpu && w.dtype == DType::f64))
    core::fail(kOp, on_cpu ? "a weight of dtype f32, f16, bf16 or f64" : "a weight of dtype f32, f16 or bf16",
               name_of(w.dtype), on_cpu ? "prune it before it is quantized" : "move it to the CPU");
  if (w.rows == 0 || w.cols == 0) return;
  if (out.values == nullptr || out.positions == nullptr || out.mask == nullptr)
    core::fail(kOp, "memory for values, positions and mask", "a null pointer",
               "pass all three; only those of W^T may be null");
  if (on_cpu) return compress_on_host(w, pruning, out, executor);
  ops::require_gpu(kOp, executor);
#ifdef SPARSELOOM_HAVE_CUDA
  const runtime::CudaDeviceScope scope(executor.device);
  ops::require_queued(kOp, kernels::cuda::semi24_compress(w, pruning, out, executor.stream), executor);
#endif
}

}  // namespace sparseloom
