#include "kernels/cuda/sm80/decode.h"
#include "kernels/cuda/sm80/decode_mma_launch.cuh"

namespace sparseloom::kernels::cuda::decode {

int launch_forward_tf32(const MatmulArgs& args) noexcept { return launch_forward<Tf32Mma>(args); }

}  // namespace sparseloom::kernels::cuda::decode
