// The positions of 2:4 weights in the order of the hardware.
#include "core/check.h"
#include "kernels/semi24_linear/sm80/metadata/metadata.h"
#include "layout/word.h"
#include "ops/checks.h"
#include "runtime/cuda.h"
#include "sparseloom/semi24_ops.h"

namespace sparseloom {

std::int64_t semi24_metadata_bytes(std::int64_t rows, std::int64_t cols, DType dtype) {
  if (!layout::countable(rows) || !layout::countable(cols))
    core::fail("semi24_metadata_bytes", "sizes from 0 to 2^31 - 1", core::shape(rows, cols),
               "pass the weight's shape");
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
