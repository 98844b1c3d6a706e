// Instances of decode.cuh for bf16.
#include "kernels/cuda/sm80/decode.h"
#include "kernels/cuda/sm80/decode_launch.cuh"

namespace sparseloom::kernels::cuda::decode {

int launch_bf16(const MatmulArgs& args) noexcept { return launch<MmaMath<Bf16Mma>>(args); }

}  // namespace sparseloom::kernels::cuda::decode
