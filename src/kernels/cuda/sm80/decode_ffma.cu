// Instances of decode.cuh for fp32 by FFMA.
#include "kernels/cuda/sm80/decode.h"
#include "kernels/cuda/sm80/decode_launch.cuh"

namespace sparseloom::kernels::cuda::decode {

int launch_ffma(const MatmulArgs& args) noexcept { return launch<FmaMath>(args); }

}  // namespace sparseloom::kernels::cuda::decode
