// The verb "bitmap_linear": the linear layer on bitmap weights (bitmap.h), planned like BSR's. Besides
// LinearOf's rows `dense` and `reference` it has fast ones for forward and dX (src/kernels/bitmap_linear).
#pragma once

#include "sparseloom/bitmap.h"
#include "sparseloom/linear_of.h"

namespace sparseloom {

/// Bitmap::unpack, by this machine's vectors.
template <>
SPARSELOOM_API void kernels::generic::unpack_rows<Bitmap>(const BitmapView& w, const void* values,
                                                          const MatrixView& dense, std::int64_t begin,
                                                          std::int64_t end);

/// Forward, dX and dW. LinearOf has plan() and run(); values, and the result of dW, are [stored].
using BitmapLinear = LinearOf<Bitmap>;

}  // namespace sparseloom
