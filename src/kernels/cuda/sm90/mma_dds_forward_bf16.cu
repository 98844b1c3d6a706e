// Instantiates mma_dds.cuh for the forward product in bf16.
#include "kernels/cuda/sm90/mma_dds.h"
#include "kernels/cuda/sm90/mma_dds_launch.cuh"

namespace sparseloom::kernels::cuda::mma_dds {

int forward_bf16(const MatmulArgs& args) noexcept { return launch<Forward, Bf16>(args); }

}  // namespace sparseloom::kernels::cuda::mma_dds
