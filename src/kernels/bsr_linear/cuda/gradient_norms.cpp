// Selects the instance of a block-norm kernel by dtype.
#include "kernels/bsr_linear/cuda/gradient_norms.h"

#ifdef SPARSELOOM_HAVE_CUDA

#include <cuda_runtime_api.h>

namespace sparseloom::kernels::cuda {

int sm80_gradient_norms(const GradientNorms& call) noexcept {
  switch (call.dy.dtype) {
    case DType::bf16: return mma_norms::norms_bf16(call);
    case DType::f16: return mma_norms::norms_f16(call);
    case DType::f32: return mma_norms::norms_f32(call);
    default: return cudaErrorInvalidValue;
  }
}

int sm90_gradient_norms(const GradientNorms& call) noexcept {
  if (call.dy.rows == 0) return cudaErrorInvalidValue;
  switch (call.dy.dtype) {
    case DType::bf16: return wgmma_norms::norms_bf16(call);
    case DType::f16: return wgmma_norms::norms_f16(call);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace sparseloom::kernels::cuda

#endif
