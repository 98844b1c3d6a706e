// Declares the instances of kernel.cuh, one for each dtype.
#pragma once

#include "kernels/bsr_linear/cuda/gradient_norms.h"

namespace sparseloom::kernels::cuda::wgmma_norms {

int norms_bf16(const GradientNorms& call) noexcept;
int norms_f16(const GradientNorms& call) noexcept;

}  // namespace sparseloom::kernels::cuda::wgmma_norms
