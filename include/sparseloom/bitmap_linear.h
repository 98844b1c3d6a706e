// The verb "bitmap_linear": the linear layer on bitmap weights (bitmap.h), planned like BSR's. Besides
// LinearOf's rows `dense` and `reference` it has fast ones for forward and dX (src/kernels/bitmap_linear).
#pragma once

#include "sparseloom/bitmap.h"
#include "sparseloom/linear_of.h"

namespace sparseloom {

/// Forward, dX and dW. LinearOf has plan() and run(); values, and the result of dW, are [stored].
using BitmapLinear = LinearOf<Bitmap>;

}  // namespace sparseloom
