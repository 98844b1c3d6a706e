// The f16 instances of sm90_decode with X in shared memory (blocks of 16 x 16).
#include "kernels/cuda/sm90/decode.h"
#include "kernels/cuda/sm90/decode_x_in_shared_launch.cuh"

namespace sparseloom::kernels::cuda::decode90::x_in_shared {

int launch_f16(const MatmulArgs& args) noexcept { return launch<F16>(args); }

}  // namespace sparseloom::kernels::cuda::decode90::x_in_shared
