// The dense kernel: it scatters W into a dense matrix and calls the GEMM that the executor lends.
#pragma once

#include "kernels/bsr_linear/verb.h"

namespace sparseloom::kernels {

Kernel dense_kernel();

}  // namespace sparseloom::kernels
