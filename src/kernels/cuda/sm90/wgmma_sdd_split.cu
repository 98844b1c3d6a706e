// wgmma_sdd.cuh: f32 as planes of bf16.
#include "kernels/cuda/sm90/wgmma_sdd.h"
#include "kernels/cuda/sm90/wgmma_sdd_launch.cuh"

namespace sparseloom::kernels::cuda::wgmma_sdd {

int dw_split(const MatmulArgs& args, const Operands& operands, std::byte* workspace,
             int most_blocks) noexcept {
  return launch<Split>(args, operands, workspace, most_blocks);
}

}  // namespace sparseloom::kernels::cuda::wgmma_sdd
