#include "kernels/cuda/sm90/decode.h"
#include "kernels/cuda/sm90/decode_line_launch.cuh"

namespace sparseloom::kernels::cuda::decode90::line {

int launch_bf16(const MatmulArgs& args) noexcept { return launch<Bf16>(args); }

}  // namespace sparseloom::kernels::cuda::decode90::line
