// The entry of dw_norms: it finds the instance by dtype.
#include <cuda_runtime.h>

#include "kernels/bsr_linear/sm90/dw_norms/instances.h"

namespace sparseloom::kernels::cuda {

int sm90_gradient_norms(const GradientNorms& call) noexcept {
  if (call.dy.rows == 0) return cudaErrorInvalidValue;
  switch (call.dy.dtype) {
    case DType::bf16: return wgmma_norms::norms_bf16(call);
    case DType::f16: return wgmma_norms::norms_f16(call);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace sparseloom::kernels::cuda
