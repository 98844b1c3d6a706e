// Instances of decode.cuh for fp32 rounded to TF32.
#include "kernels/cuda/sm80/decode.h"
#include "kernels/cuda/sm80/decode_launch.cuh"

namespace sparseloom::kernels::cuda::decode {

int launch_tf32(const MatmulArgs& args) noexcept { return launch<MmaMath<Tf32Mma>>(args); }

}  // namespace sparseloom::kernels::cuda::decode
