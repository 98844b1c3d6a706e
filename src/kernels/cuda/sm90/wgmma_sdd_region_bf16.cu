// Instantiates wgmma_sdd_region.cuh for bf16.
#include "kernels/cuda/sm90/wgmma_sdd.h"
#include "kernels/cuda/sm90/wgmma_sdd_region_launch.cuh"

namespace sparseloom::kernels::cuda::wgmma_sdd {

int dw_region_bf16(const MatmulArgs& args, const Regions& regions) noexcept {
  return launch_region<RegionBf16>(args, regions);
}

}  // namespace sparseloom::kernels::cuda::wgmma_sdd
