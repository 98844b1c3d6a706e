#include "kernels/cuda/sm80/decode.h"
#include "kernels/cuda/sm80/decode_mma_launch.cuh"

namespace sparseloom::kernels::cuda::decode {

int launch_dx_bf16(const MatmulArgs& args) noexcept { return launch_dx<Bf16Mma>(args); }

}  // namespace sparseloom::kernels::cuda::decode
