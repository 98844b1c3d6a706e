// Instances of mma_dds.cuh for dx in f16.
#include "kernels/cuda/sm80/mma_dds.h"
#include "kernels/cuda/sm80/mma_dds_launch.cuh"

namespace sparseloom::kernels::cuda::dds {

int dx_f16(const MatmulArgs& args) noexcept { return launch<Dx, F16>(args); }

}  // namespace sparseloom::kernels::cuda::dds
