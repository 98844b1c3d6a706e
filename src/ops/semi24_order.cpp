// The positions of 2:4 weights in the order of the hardware.
#include "kernels/semi24_linear/sm80/metadata/metadata.h"
#include "ops/checks.h"
#include "runtime/cuda.h"
#include "sparseloom/semi24_ops.h"

namespace sparseloom {

std::int64_t semi24_metadata_bytes(std::int64_t rows, std::int64_t cols, DType dtype) {
  return kernels::cuda::semi24_metadata_bytes(rows, cols, dtype);
}

void semi24_order([[maybe_unused]] const Semi24View& w, [[maybe_unused]] DType dtype,
                  [[maybe_unused]] std::byte* metadata, const Executor& executor) {
  ops::require_gpu("semi24_order", executor);
#ifdef SPARSELOOM_HAVE_CUDA
  const runtime::CudaDeviceScope scope(executor.device);
  ops::require_queued(
      "semi24_order",
      kernels::cuda::semi24_order_metadata(w.positions, w.rows, w.cols, dtype, metadata, executor.stream),
      executor);
#endif
}

}  // namespace sparseloom
