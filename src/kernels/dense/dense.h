// The dense candidate: scatter W, then the GEMM the caller lends.
#pragma once

#include "kernels/args.h"

namespace sparseloom::kernels {

Kernel dense_kernel();

}  // namespace sparseloom::kernels
