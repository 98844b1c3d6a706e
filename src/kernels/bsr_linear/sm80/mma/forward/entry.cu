// sm80_mma_forward: selects the instance of kernel.cuh for the dtype and the direction.
#include <cuda_runtime.h>

#include "kernels/bsr_linear/sm80/mma/forward/entry.h"

namespace sparseloom::kernels::cuda {

int sm80_mma_forward(const MatmulArgs& args, const Schedule& schedule) noexcept {
  const bool dx = args.direction == Direction::dx;
  if (args.direction == Direction::dw) return cudaErrorInvalidValue;
  switch (args.dtype) {
    case DType::bf16:
      return dx ? mma::forward::dx_bf16(args, schedule) : mma::forward::forward_bf16(args, schedule);
    case DType::f16:
      return dx ? mma::forward::dx_f16(args, schedule) : mma::forward::forward_f16(args, schedule);
    case DType::f32:
      if (!args.tf32) return cudaErrorInvalidValue;  // fp32 is not rounded unasked: use sm80_ffma_forward
      return dx ? mma::forward::dx_tf32(args, schedule) : mma::forward::forward_tf32(args, schedule);
    case DType::f64:
    case DType::i8:
    case DType::f8e4m3: break;
  }
  return cudaErrorInvalidValue;
}

}  // namespace sparseloom::kernels::cuda
