// Checks of CSR weights (csr.h) before a product.
#pragma once

#include "sparseloom/csr.h"
#include "sparseloom/export.h"

namespace sparseloom {

/// Csr::validate, unless the calling thread has validated this index lately: it recognises indices by their
/// addresses, sizes and content. `writes`, if it is not null, is the number of the owner's writes to the
/// index: for large indices, that and a few samples stand for the content, so other memory at the same
/// addresses needs other numbers. Index arrays in host memory only.
SPARSELOOM_API void csr_require_valid(const char* op, const CsrView& w,
                                      const std::uint64_t* writes = nullptr);

}  // namespace sparseloom
