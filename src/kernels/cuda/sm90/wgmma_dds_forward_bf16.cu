// The instances of wgmma_dds.cuh for forward in bf16.
#include "kernels/cuda/sm90/wgmma_dds.h"
#include "kernels/cuda/sm90/wgmma_dds_launch.cuh"

namespace sparseloom::kernels::cuda::wgmma_dds {

int forward_bf16(const MatmulArgs& args, TileSize size) noexcept { return launch<Forward, Bf16>(args, size); }

}  // namespace sparseloom::kernels::cuda::wgmma_dds
