// The f16 instances of sm90_decode.
#include "kernels/cuda/sm90/decode.h"
#include "kernels/cuda/sm90/decode_launch.cuh"

namespace sparseloom::kernels::cuda::decode90 {

int launch_f16(const MatmulArgs& args) noexcept { return launch<F16>(args); }

}  // namespace sparseloom::kernels::cuda::decode90
