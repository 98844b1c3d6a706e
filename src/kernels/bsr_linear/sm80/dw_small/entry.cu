// Selects the instance of dw_small for a call.
#include <cuda_runtime_api.h>

#include "kernels/bsr_linear/sm80/dw_small/cut.h"
#include "kernels/bsr_linear/sm80/dw_small/entry.h"

namespace sparseloom::kernels::cuda {

int sm80_dw_small(const MatmulArgs& args, const Schedule& schedule) noexcept {
  const int cluster = schedule.cluster;
  const bool takes = args.direction == Direction::dw && schedule.tile_m > 0 && schedule.tile_n > 0 &&
                     cluster >= 1 && cluster <= dw_small::kMostCluster && (cluster & (cluster - 1)) == 0 &&
                     args.m >= 0 && args.m <= std::int64_t{cluster} * dw_small::kMostSlice;
  if (!takes) return cudaErrorInvalidValue;
  if (args.index.blocks == 0) return cudaSuccess;
  if (args.dtype == DType::bf16) return dw_small::launch_bf16(args, schedule);
  if (args.dtype == DType::f16) return dw_small::launch_f16(args, schedule);
  return cudaErrorInvalidValue;
}

}  // namespace sparseloom::kernels::cuda
