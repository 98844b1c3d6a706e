// The dense kernel: it scatters W into a dense matrix and calls the GEMM that the executor lends.
#pragma once

#include "kernels/bsr_linear/verb.h"

namespace sparseloom::kernels {

Kernel dense_kernel();
/// For f8e4m3 on CUDA devices.
ScaledKernel scaled_dense_kernel();

}  // namespace sparseloom::kernels
