// Instances of mma_dds.cuh for forward in tf32.
#include "kernels/cuda/sm80/mma_dds.h"
#include "kernels/cuda/sm80/mma_dds_launch.cuh"

namespace sparseloom::kernels::cuda::dds {

int forward_tf32(const MatmulArgs& args) noexcept { return launch<Forward, Tf32>(args); }

}  // namespace sparseloom::kernels::cuda::dds
