// Instantiates wgmma_sdd.cuh for f16.
#include "kernels/cuda/sm90/wgmma_sdd.h"
#include "kernels/cuda/sm90/wgmma_sdd_launch.cuh"

namespace sparseloom::kernels::cuda::wgmma_sdd {

int dw_f16(const MatmulArgs& args, int most_blocks) noexcept { return launch<F16>(args, most_blocks); }

}  // namespace sparseloom::kernels::cuda::wgmma_sdd
