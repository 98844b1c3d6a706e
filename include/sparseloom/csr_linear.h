// The verb "csr_linear": the linear layer on CSR weights (csr.h), planned like BSR's. Besides LinearOf's rows
// `dense` and `reference` it has the library's fast ones (src/kernels/csr_linear).
#pragma once

#include "sparseloom/csr.h"
#include "sparseloom/linear_of.h"

namespace sparseloom {

/// Forward, dX and dW. LinearOf has plan() and run(); values, and the result of dW, are [stored].
using CsrLinear = LinearOf<Csr>;

}  // namespace sparseloom
