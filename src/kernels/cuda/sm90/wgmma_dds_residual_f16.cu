// The instances of wgmma_dds.cuh for forward with a residual in f16.
#include "kernels/cuda/sm90/wgmma_dds.h"
#include "kernels/cuda/sm90/wgmma_dds_launch.cuh"

namespace sparseloom::kernels::cuda::wgmma_dds {

int forward_plus_f16(const MatmulArgs& args, TileSize size) noexcept {
  return launch<ForwardPlus, F16>(args, size);
}

}  // namespace sparseloom::kernels::cuda::wgmma_dds
