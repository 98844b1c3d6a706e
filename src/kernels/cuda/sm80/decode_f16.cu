// Instances of decode.cuh for f16.
#include "kernels/cuda/sm80/decode.h"
#include "kernels/cuda/sm80/decode_launch.cuh"

namespace sparseloom::kernels::cuda::decode {

int launch_f16(const MatmulArgs& args) noexcept { return launch<MmaMath<F16Mma>>(args); }

}  // namespace sparseloom::kernels::cuda::decode
