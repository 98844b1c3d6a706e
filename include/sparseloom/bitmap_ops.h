// Checks of bitmap weights (bitmap.h) before a product, and copies between them and dense ones.
#pragma once

#include "sparseloom/bitmap.h"
#include "sparseloom/executor.h"
#include "sparseloom/export.h"

namespace sparseloom {

/// Bitmap::validate, unless the calling thread has validated this index lately; see csr_require_valid.
SPARSELOOM_API void bitmap_require_valid(const char* op, const BitmapView& w,
                                         const std::uint64_t* writes = nullptr);

/// dense [rows, cols] = W, zero where nothing is stored, and back: values [stored] = the stored elements of
/// dense. On the CPU, by the executor's threads; elements of any dtype, whose bytes are copied. The index
/// must be valid.
SPARSELOOM_API void bitmap_unpack(const BitmapView& w, const void* values, const MatrixView& dense,
                                  const Executor& executor);
SPARSELOOM_API void bitmap_pack(const BitmapView& w, const ConstMatrixView& dense, void* values,
                                const Executor& executor);

}  // namespace sparseloom
