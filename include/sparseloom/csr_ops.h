// Checks of CSR weights (csr.h) that a caller wants in front of every product.
#pragma once

#include "sparseloom/csr.h"
#include "sparseloom/export.h"

namespace sparseloom {

/// Csr::validate, unless the calling thread has validated this index lately: it knows indices by their
/// addresses, sizes and a few samples. Index arrays in host memory only.
SPARSELOOM_API void csr_require_valid(const char* op, const CsrView& w);

}  // namespace sparseloom
