// conv_pack and conv_unpack: the weight of a convolution between dense memory, channels last, and blocks.
#include <algorithm>
#include <cstring>

#include "core/check.h"
#include "kernels/shared/bsr/pack.h"
#include "ops/checks.h"
#include "ops/valid_index.h"
#include "runtime/cuda.h"
#include "sparseloom/conv_ops.h"

namespace sparseloom {
namespace {

void check(const char* op, const ConstMatrixView& dense, const IndexView& index, std::int64_t taps,
           const void* values, const Executor& executor) {
  if (taps < 1)
    core::fail(op, "at least one tap", std::to_string(taps), "pass the product of the kernel's sizes");
  if (dense.rows != index.rows || dense.cols != taps * index.cols)
    core::fail(op, "dense [rows, taps * cols] of " + core::shape(index.rows, taps * index.cols),
               core::shape(dense.rows, dense.cols), "pass the weight that the index belongs to");
  if (index.blocks > 0) core::require_memory(op, {{"values", values}});
  if (dense.rows > 0 && dense.cols > 0) core::require_memory(op, {{"dense", dense.data}});
  if (executor.device < 0) return ops::require_valid(op, index);
  if (is_scaled(dense.dtype))
    core::fail(op, "elements of 16, 32 or 64 bits on a CUDA device", name_of(dense.dtype),
               "convert the weight first");
  ops::require_gpu(op, executor);
}

/// Calls copy(element of dense, element of values, elements) for each row of each block of each tap.
template <class Copy>
void for_each_row(const ConstMatrixView& dense, const IndexView& index, std::int64_t taps, Copy copy) {
  const std::int64_t bm = index.block.rows, bn = index.block.cols;
  for (std::int64_t r = 0; r < index.rows; ++r) {
    const std::int64_t block_row = r / bm, inside = r % bm;
    for (std::int64_t i = index.crow[block_row]; i < index.crow[block_row + 1]; ++i)
      for (std::int64_t tap = 0; tap < taps; ++tap) {
        const std::int64_t first = index.col[i] * bn;
        copy(r * dense.stride + tap * index.cols + first, ((i * taps + tap) * bm + inside) * bn,
             std::min(bn, index.cols - first));
      }
  }
}

}  // namespace

void conv_pack(const ConstMatrixView& dense, const IndexView& index, std::int64_t taps, void* values,
               const Executor& executor) {
  constexpr const char* op = "conv_pack";
  check(op, dense, index, taps, values, executor);
  if (index.blocks == 0) return;
  if (executor.device < 0) {
    const auto size = static_cast<std::int64_t>(size_of(dense.dtype));
    std::memset(values, 0, static_cast<std::size_t>(index.blocks * taps * index.block_elements() * size));
    for_each_row(dense, index, taps, [&](std::int64_t from, std::int64_t to, std::int64_t elements) {
      std::memcpy(static_cast<std::byte*>(values) + to * size,
                  static_cast<const std::byte*>(dense.data) + from * size,
                  static_cast<std::size_t>(elements * size));
    });
    return;
  }
#ifdef SPARSELOOM_HAVE_CUDA
  const runtime::CudaDeviceScope scope(executor.device);
  ops::require_queued(op, kernels::cuda::sm80_bsr_pack(dense, index, taps, values, executor.stream),
                      executor);
#endif
}

void conv_unpack(const IndexView& index, std::int64_t taps, const void* values, const MatrixView& dense,
                 const Executor& executor) {
  constexpr const char* op = "conv_unpack";
  check(op, dense, index, taps, values, executor);
  if (dense.rows == 0 || dense.cols == 0) return;
  if (executor.device < 0) {
    const auto size = static_cast<std::int64_t>(size_of(dense.dtype));
    auto* const bytes = static_cast<std::byte*>(dense.data);
    for (std::int64_t r = 0; r < dense.rows; ++r)
      std::memset(bytes + r * dense.stride * size, 0, static_cast<std::size_t>(dense.cols * size));
    for_each_row(dense, index, taps, [&](std::int64_t to, std::int64_t from, std::int64_t elements) {
      std::memcpy(bytes + to * size, static_cast<const std::byte*>(values) + from * size,
                  static_cast<std::size_t>(elements * size));
    });
    return;
  }
#ifdef SPARSELOOM_HAVE_CUDA
  const runtime::CudaDeviceScope scope(executor.device);
  ops::require_queued(op, kernels::cuda::sm80_bsr_unpack(index, taps, values, dense, executor.stream),
                      executor);
#endif
}

}  // namespace sparseloom
