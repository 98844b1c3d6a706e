// The rows of this family for the CPU and for any device: the fast CPU kernels; `dense`, which scatters W
// into a dense matrix and calls the GEMM that the executor lends; `reference`, against which the fast kernels
// are tested: plain loops, fp64 accumulation, every dtype and shape. cuda/rows.h has CUDA's.
#pragma once

#include <span>

#include "kernels/bsr_linear/cpu/rates.h"
#include "kernels/bsr_linear/verb.h"

namespace sparseloom::kernels {

/// The fastest instruction set comes first. A row's propose() says whether this machine and problem suit it.
std::span<const Kernel> cpu_kernels();
std::span<const ScaledKernel> cpu_scaled_kernels();

Kernel dense_kernel();
/// For f8e4m3 on CUDA devices.
ScaledKernel scaled_dense_kernel();

Kernel reference_kernel();
ScaledKernel scaled_reference_kernel();

}  // namespace sparseloom::kernels
