// What the CUDA kernels of this family get: the operands as MatmulArgs has them, and W.
#pragma once

#include "sparseloom/csr.h"
#include "sparseloom/matmul_args.h"

namespace sparseloom::kernels::cuda {

/// One product of args.direction. `args.index` is empty; dX needs the column index of `w`.
struct CsrProduct {
  const MatmulArgs& args;
  const CsrView& w;
};

}  // namespace sparseloom::kernels::cuda
