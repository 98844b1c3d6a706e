// Checks of bitmap weights (bitmap.h) before a product.
#pragma once

#include "sparseloom/bitmap.h"
#include "sparseloom/export.h"

namespace sparseloom {

/// Bitmap::validate, unless the calling thread has validated this index lately; see csr_require_valid.
SPARSELOOM_API void bitmap_require_valid(const char* op, const BitmapView& w,
                                         const std::uint64_t* writes = nullptr);

}  // namespace sparseloom
