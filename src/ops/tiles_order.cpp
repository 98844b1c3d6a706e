#include "kernels/semi24_linear/sm80/metadata/metadata.h"
#include "ops/checks.h"
#include "runtime/cuda.h"
#include "sparseloom/tiles_ops.h"

namespace sparseloom {

std::int64_t tiles_metadata_bytes(const TilesView& w) noexcept {
  return w.halves * (w.side / 64) * (w.side / 64) * kernels::cuda::kMetadataUnitBytes;
}

void tiles_order([[maybe_unused]] const TilesView& w, [[maybe_unused]] std::byte* metadata,
                 const Executor& executor) {
  ops::require_gpu("tiles_order", executor);
#ifdef SPARSELOOM_HAVE_CUDA
  const runtime::CudaDeviceScope scope(executor.device);
  ops::require_queued(
      "tiles_order",
      kernels::cuda::semi24_order_units(w.positions, w.halves * w.side, w.side, metadata, executor.stream),
      executor);
#endif
}

}  // namespace sparseloom
