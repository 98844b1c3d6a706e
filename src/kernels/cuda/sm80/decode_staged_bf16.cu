// Instances of decode_staged.cuh for bf16.
#include "kernels/cuda/sm80/decode.h"
#include "kernels/cuda/sm80/decode_staged_launch.cuh"

namespace sparseloom::kernels::cuda::decode::staged {

int launch_bf16(const MatmulArgs& args) noexcept { return launch<Bf16Mma>(args); }

}  // namespace sparseloom::kernels::cuda::decode::staged
