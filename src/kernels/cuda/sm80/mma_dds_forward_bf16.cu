// Instances of mma_dds.cuh for forward in bf16.
#include "kernels/cuda/sm80/mma_dds.h"
#include "kernels/cuda/sm80/mma_dds_launch.cuh"

namespace sparseloom::kernels::cuda::dds {

int forward_bf16(const MatmulArgs& args) noexcept { return launch<Forward, Bf16>(args); }

}  // namespace sparseloom::kernels::cuda::dds
