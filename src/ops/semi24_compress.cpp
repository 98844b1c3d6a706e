// Pruning and packing at once.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <vector>

#include "core/check.h"
#include "layout/semi24.h"
#include "ops/checks.h"
#include "sparseloom/semi24_ops.h"
#ifdef SPARSELOOM_HAVE_CUDA
#include "kernels/semi24_linear/sm80/pruning/pruning.h"
#include "runtime/cuda.h"
#endif

namespace sparseloom {
namespace {

constexpr const char* kOp = "semi24_compress";

/// w where the mask holds, zero elsewhere, rows side by side; or its transpose.
std::vector<std::byte> masked(const ConstMatrixView& w, const bool* mask, bool transposed) {
  const std::size_t size = size_of(w.dtype);
  std::vector<std::byte> kept(static_cast<std::size_t>(w.rows * w.cols) * size);
  for (std::int64_t r = 0; r < w.rows; ++r)
    for (std::int64_t c = 0; c < w.cols; ++c)
      if (mask[r * w.cols + c]) {
        const auto to = static_cast<std::size_t>(transposed ? c * w.rows + r : r * w.cols + c);
        const auto from = static_cast<std::size_t>(r * w.stride + c);
        std::memcpy(kept.data() + to * size, static_cast<const std::byte*>(w.data) + from * size, size);
      }
  return kept;
}

void compress_on_host(const ConstMatrixView& w, Semi24Pruning pruning, const Semi24Compressed& out,
                      const Executor& executor) {
  const auto mask = std::make_unique<bool[]>(static_cast<std::size_t>(w.rows * w.cols));
  semi24_prune(w, pruning, mask.get(), executor);
  const std::vector<std::byte> kept = masked(w, mask.get(), false);
  semi24_pack({kept.data(), w.dtype, w.rows, w.cols, w.cols}, out.values, out.positions, executor);
  const std::int64_t mask_bytes = core::ceil_div(w.cols, std::int64_t{8});
  std::fill_n(out.mask, w.rows * mask_bytes, std::uint8_t{0});
  for (std::int64_t r = 0; r < w.rows; ++r)
    for (std::int64_t c = 0; c < w.cols; ++c)
      out.mask[r * mask_bytes + c / 8] |= static_cast<std::uint8_t>(
          static_cast<unsigned>(mask[static_cast<std::size_t>(r * w.cols + c)]) << (c % 8));
  if (out.transposed_values == nullptr) return;
  const std::vector<std::byte> turned = masked(w, mask.get(), true);
  semi24_pack({turned.data(), w.dtype, w.cols, w.rows, w.rows}, out.transposed_values,
              out.transposed_positions, executor);
}

}  // namespace

void semi24_compress(const ConstMatrixView& w, Semi24Pruning pruning, const Semi24Compressed& out,
                     const Executor& executor) {
  ops::require_matrix(kOp, w);
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
