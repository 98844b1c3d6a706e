// conv_pack and conv_unpack: the weight of a convolution between dense memory, channels last, and blocks.
#include <string>

#include "core/check.h"
#include "kernels/bsr_conv/rows.h"
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
  if (dense.rows > 0 && dense.cols > 0) core::require_memory(op, {{"dense", dense.data}});
  ops::require_matrix(op, dense);
  // Divided, not multiplied: the product of any two numbers may overflow.
  if (dense.rows != index.rows || dense.cols % taps != 0 || dense.cols / taps != index.cols)
    core::fail(op,
               "dense [rows, taps * cols] of " + core::shape(index.rows, index.cols) + " and " +
                   std::to_string(taps) + " taps",
               core::shape(dense.rows, dense.cols), "pass the weight that the index belongs to");
  if (index.blocks > 0) core::require_memory(op, {{"values", values}});
  if (executor.device < 0) return ops::require_valid(op, index);
  if (is_scaled(dense.dtype))
    core::fail(op, "elements of 16, 32 or 64 bits on a CUDA device", name_of(dense.dtype),
               "convert the weight first");
  ops::require_gpu(op, executor);
}

}  // namespace

void conv_pack(const ConstMatrixView& dense, const IndexView& index, std::int64_t taps, void* values,
               const Executor& executor) {
  constexpr const char* op = "conv_pack";
  check(op, dense, index, taps, values, executor);
  if (index.blocks == 0) return;
  const runtime::CudaDeviceScope scope(executor.device);
  ops::require_queued(op, kernels::pack_conv(dense, index, taps, values, executor), executor);
}

void conv_unpack(const IndexView& index, std::int64_t taps, const void* values, const MatrixView& dense,
                 const Executor& executor) {
  constexpr const char* op = "conv_unpack";
  check(op, dense, index, taps, values, executor);
  if (dense.rows == 0 || dense.cols == 0) return;
  const runtime::CudaDeviceScope scope(executor.device);
  ops::require_queued(op, kernels::unpack_conv(index, taps, values, dense, executor), executor);
}

}  // namespace sparseloom
