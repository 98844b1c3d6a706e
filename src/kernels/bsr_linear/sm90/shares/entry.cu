// sm90_shares: selects the instance of kernel.cuh for the dtype and the direction.
#include <cuda_runtime.h>

#include "kernels/bsr_linear/sm90/shares/entry.h"

namespace sparseloom::kernels::cuda {

int sm90_shares(const MatmulArgs& args, const Schedule& schedule) noexcept {
  const bool dx = args.direction == Direction::dx;
  if (args.direction == Direction::dw) return cudaErrorInvalidValue;
  switch (args.dtype) {
    case DType::bf16: return dx ? shares::dx_bf16(args, schedule) : shares::forward_bf16(args, schedule);
    case DType::f16: return dx ? shares::dx_f16(args, schedule) : shares::forward_f16(args, schedule);
    case DType::f32:
    case DType::f64:
    case DType::i8:
    case DType::f8e4m3: break;
  }
  return cudaErrorInvalidValue;
}

}  // namespace sparseloom::kernels::cuda
