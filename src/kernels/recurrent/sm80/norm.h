// The norms between steps on a CUDA device. Each queues its launches on `stream`, a cudaStream_t, and returns
// its cudaError_t.
#pragma once

#include "sparseloom/unit_norm.h"

namespace sparseloom::kernels::cuda {

int sm80_unit_norm(const UnitNorm& norm, void* stream) noexcept;
int sm80_unit_norm_gradient(const UnitNormGradient& norm, void* stream) noexcept;

}  // namespace sparseloom::kernels::cuda
