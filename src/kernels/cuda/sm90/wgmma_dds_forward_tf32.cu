// The instances of wgmma_dds.cuh for forward of f32 operands that are rounded to TF32.
#include "kernels/cuda/sm90/wgmma_dds.h"
#include "kernels/cuda/sm90/wgmma_dds_launch.cuh"

namespace sparseloom::kernels::cuda::wgmma_dds {

int forward_tf32(const MatmulArgs& args, TileSize size) noexcept { return launch<Forward, Tf32>(args, size); }

}  // namespace sparseloom::kernels::cuda::wgmma_dds
