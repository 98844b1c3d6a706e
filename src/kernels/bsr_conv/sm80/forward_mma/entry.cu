// sm80_conv_forward: selects the instance of kernel.cuh for the dtype and the direction.
#include <cuda_runtime.h>

#include "kernels/bsr_conv/sm80/forward_mma/entry.h"

namespace sparseloom::kernels::cuda {

int sm80_conv_forward(const MatmulArgs& args, const conv::Shape& shape, const Schedule& schedule) noexcept {
  const bool dx = args.direction == Direction::dx;
  if (args.direction == Direction::dw) return cudaErrorInvalidValue;
  switch (args.dtype) {
    case DType::bf16:
      return dx ? conv_forward::conv_dx_bf16(args, shape, schedule)
                : conv_forward::conv_forward_bf16(args, shape, schedule);
    case DType::f16:
      return dx ? conv_forward::conv_dx_f16(args, shape, schedule)
                : conv_forward::conv_forward_f16(args, shape, schedule);
    case DType::f32:
      if (!args.tf32) return cudaErrorInvalidValue;  // fp32 is not rounded unasked
      return dx ? conv_forward::conv_dx_tf32(args, shape, schedule)
                : conv_forward::conv_forward_tf32(args, shape, schedule);
    case DType::f64:
    case DType::i8:
    case DType::f8e4m3: break;
  }
  return cudaErrorInvalidValue;
}

}  // namespace sparseloom::kernels::cuda
