// The entry of dw_norms: it finds the instance by dtype.
#include <cuda_runtime.h>

#include "kernels/bsr_linear/sm80/dw_norms/instances.h"

namespace sparseloom::kernels::cuda {

int sm80_gradient_norms(const GradientNorms& call) noexcept {
  switch (call.dy.dtype) {
    case DType::bf16: return mma_norms::norms_bf16(call);
    case DType::f16: return mma_norms::norms_f16(call);
    case DType::f32: return mma_norms::norms_f32(call);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace sparseloom::kernels::cuda
