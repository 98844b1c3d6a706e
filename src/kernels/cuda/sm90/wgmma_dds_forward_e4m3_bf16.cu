// The instances of wgmma_dds.cuh for forward from e4m3 to bf16.
#include "kernels/cuda/sm90/wgmma_dds.h"
#include "kernels/cuda/sm90/wgmma_dds_launch.cuh"

namespace sparseloom::kernels::cuda::wgmma_dds {

int forward_e4m3_bf16(const MatmulArgs& args, TileSize size) noexcept {
  return launch<Forward, E4m3<OutBf16>>(args, size);
}

}  // namespace sparseloom::kernels::cuda::wgmma_dds
