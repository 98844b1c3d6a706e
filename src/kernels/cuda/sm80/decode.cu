// Which decode instance serves a call.
#include <cuda_runtime_api.h>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/sm80/decode.h"

namespace sparseloom::kernels::cuda {

int sm80_decode(const MatmulArgs& args) noexcept {
  if (args.m < 1 || args.m > kDecodeTokens || args.direction == Direction::dw) return cudaErrorInvalidValue;
  switch (args.dtype) {
    case DType::bf16: return decode::launch_bf16(args);
    case DType::f16: return decode::launch_f16(args);
    case DType::f32: return args.tf32 ? decode::launch_tf32(args) : decode::launch_ffma(args);
    case DType::f64: break;
  }
  return cudaErrorInvalidValue;
}

}  // namespace sparseloom::kernels::cuda
