// Selects the decode instance for a call.
#include <cuda_runtime_api.h>

#include "kernels/bsr_linear/sm80/decode/entry.h"

namespace sparseloom::kernels::cuda {

int sm80_decode(const MatmulArgs& args, const Schedule& schedule) noexcept {
  if (args.m < 1 || args.m > kDecodeTokens || args.direction == Direction::dw) return cudaErrorInvalidValue;
  switch (args.dtype) {
    case DType::bf16: return decode::launch_bf16(args, schedule);
    case DType::f16: return decode::launch_f16(args, schedule);
    case DType::f32:
      return args.tf32 ? decode::launch_tf32(args, schedule) : decode::launch_ffma(args, schedule);
    case DType::f64:
    case DType::i8:
    case DType::f8e4m3: break;
  }
  return cudaErrorInvalidValue;
}

}  // namespace sparseloom::kernels::cuda
