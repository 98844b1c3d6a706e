// Instances of decode_staged.cuh for f16.
#include "kernels/cuda/sm80/decode.h"
#include "kernels/cuda/sm80/decode_staged_launch.cuh"

namespace sparseloom::kernels::cuda::decode::staged {

int launch_f16(const MatmulArgs& args) noexcept { return launch<F16Mma>(args); }

}  // namespace sparseloom::kernels::cuda::decode::staged
