// Instantiates mma_dds.cuh for the forward product in f16.
#include "kernels/cuda/sm90/mma_dds.h"
#include "kernels/cuda/sm90/mma_dds_launch.cuh"

namespace sparseloom::kernels::cuda::mma_dds {

int forward_f16(const MatmulArgs& args) noexcept { return launch<Forward, F16>(args); }

}  // namespace sparseloom::kernels::cuda::mma_dds
