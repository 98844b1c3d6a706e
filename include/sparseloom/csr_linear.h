// The verb "csr_linear": the linear layer on CSR weights (csr.h), planned as BSR's is. Beside LinearOf's rows
// `dense` and `reference` it has the library's fast ones (src/kernels/csr_linear).
#pragma once

#include "sparseloom/csr.h"
#include "sparseloom/linear_of.h"

namespace sparseloom {

/// Forward, dX and dW. LinearOf has plan() and run(); values, and what dW writes, are [stored].
using CsrLinear = LinearOf<Csr>;

}  // namespace sparseloom
