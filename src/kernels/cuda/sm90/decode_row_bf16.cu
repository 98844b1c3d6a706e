// The bf16 instances of sm90_decode_lines.
#include "kernels/cuda/sm90/decode.h"
#include "kernels/cuda/sm90/decode_row_launch.cuh"

namespace sparseloom::kernels::cuda::decode90::rows {

int launch_bf16(const MatmulArgs& args) noexcept { return launch<Bf16>(args); }

}  // namespace sparseloom::kernels::cuda::decode90::rows
