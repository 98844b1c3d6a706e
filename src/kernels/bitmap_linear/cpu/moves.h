// Copies between the packed values of a bitmap and dense rows, a vector of columns at a time: the dense row
// of the plan and dW spend most of their time beside the product in them.
#pragma once

#include <cstdint>

#include "sparseloom/bitmap.h"
#include "sparseloom/matrix_view.h"

namespace sparseloom::kernels::cpu {

/// Bitmap::unpack and Bitmap::pack of rows [begin, end).
struct BitmapMoves {
  void (*unpack)(const BitmapView& w, const void* values, const MatrixView& dense, std::int64_t begin,
                 std::int64_t end);
  void (*pack)(const BitmapView& w, const ConstMatrixView& dense, void* values, std::int64_t begin,
               std::int64_t end);
};

/// By VPEXPAND and VPCOMPRESS, of elements of 2 and 4 bytes.
extern const BitmapMoves kBitmapMovesVbmi2;

/// This machine's copies of elements of a dtype.
BitmapMoves bitmap_moves(DType dtype);

}  // namespace sparseloom::kernels::cpu
