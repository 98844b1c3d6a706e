// Instantiates wgmma_sdd.cuh for fp32 rounded to TF32.
#include "kernels/cuda/sm90/wgmma_sdd.h"
#include "kernels/cuda/sm90/wgmma_sdd_launch.cuh"

namespace sparseloom::kernels::cuda::wgmma_sdd {

int dw_tf32(const MatmulArgs& args, const Operands& operands, std::byte* workspace,
            int most_blocks) noexcept {
  return launch<Tf32>(args, operands, workspace, most_blocks);
}

}  // namespace sparseloom::kernels::cuda::wgmma_sdd
