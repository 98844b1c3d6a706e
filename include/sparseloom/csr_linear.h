// The verb "csr_linear": the linear layer on CSR weights (csr.h), planned as BSR's is. Beside LinearOf's rows
// `dense` and `reference` it has the library's fast ones (src/kernels/csr_linear).
#pragma once

#include "sparseloom/csr.h"
#include "sparseloom/export.h"
#include "sparseloom/linear_of.h"

namespace sparseloom {

/// Forward, dX and dW. LinearOf has plan() and run(); values, and what dW writes, are [stored].
using CsrLinear = LinearOf<Csr>;

/// Csr::validate, unless the calling thread has validated this index lately: it knows indices by their
/// addresses, sizes and a few samples. Index arrays in host memory only.
SPARSELOOM_API void csr_require_valid(const char* op, const CsrView& w);

}  // namespace sparseloom
