// Instances of mma_dds.cuh for dx in tf32.
#include "kernels/cuda/sm80/mma_dds.h"
#include "kernels/cuda/sm80/mma_dds_launch.cuh"

namespace sparseloom::kernels::cuda::dds {

int dx_tf32(const MatmulArgs& args) noexcept { return launch<Dx, Tf32>(args); }

}  // namespace sparseloom::kernels::cuda::dds
