// pack and unpack on the executor's device: the CPU's copies, or CUDA kernels.
#include "core/check.h"
#include "kernels/shared/bsr/pack.h"
#include "ops/checks.h"
#include "ops/valid_index.h"
#include "runtime/cuda.h"
#include "sparseloom/ops.h"

namespace sparseloom {
namespace {

void check(const char* op, const ConstMatrixView& dense, const IndexView& index, const Executor& executor) {
  if (dense.rows != index.rows || dense.cols != index.cols)
    core::fail(op, "dense of the index's shape " + core::shape(index.rows, index.cols),
               core::shape(dense.rows, dense.cols), "pass the matrix that the index belongs to");
  if (is_scaled(dense.dtype))
    core::fail(op, "elements of 16, 32 or 64 bits on a CUDA device", name_of(dense.dtype),
               "pack on the host, or before quantizing");
  ops::require_gpu(op, executor);
}

}  // namespace

void pack(const ConstMatrixView& dense, const IndexView& index, void* values, const Executor& executor) {
  if (executor.device < 0) {
    ops::require_valid_slots("pack", index);
    return pack(dense, index, values);
  }
  check("pack", dense, index, executor);
#ifdef SPARSELOOM_HAVE_CUDA
  const runtime::CudaDeviceScope scope(executor.device);
  ops::require_queued("pack", kernels::cuda::sm80_bsr_pack(dense, index, 1, values, executor.stream),
                      executor);
#endif
}

void unpack(const IndexView& index, const void* values, const MatrixView& dense, const Executor& executor) {
  if (executor.device < 0) {
    ops::require_valid_slots("unpack", index);
    return unpack(index, values, dense);
  }
  check("unpack", dense, index, executor);
#ifdef SPARSELOOM_HAVE_CUDA
  const runtime::CudaDeviceScope scope(executor.device);
  ops::require_queued("unpack", kernels::cuda::sm80_bsr_unpack(index, 1, values, dense, executor.stream),
                      executor);
#endif
}

}  // namespace sparseloom
