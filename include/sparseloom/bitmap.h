// Bitmap weights: single elements anywhere, a bit for each element of W. This is the layout; bitmap_linear.h
// multiplies. At half of the elements it takes .56 of a dense weight in 16 bits, where CSR takes 1.5.
//
//   values  [stored] of the weight's dtype, row by row, in each row by column
//   bits    uint8 [rows, ceil(cols / 8)]: bit c % 8 (of value 1 << c % 8) of byte c / 8 says whether the
//           element of column c is stored; the bits behind the last column are 0
//   crow    int32 [rows + 1]: row r has the values [crow[r], crow[r + 1]). The bits imply it.
#pragma once

#include <bit>
#include <cstdint>

#include "sparseloom/export.h"
#include "sparseloom/layout_concept.h"
#include "sparseloom/matrix_view.h"

namespace sparseloom {

/// The index of a bitmap matrix [rows, cols]; borrowed.
struct BitmapView {
  std::int64_t rows = 0, cols = 0, stored = 0;
  const std::uint8_t* bits = nullptr;
  const std::int32_t* crow = nullptr;

  std::int64_t row_bytes() const noexcept { return (cols + 7) / 8; }
};

/// The layout (layout_concept.h). A stored zero is a stored element, and a NaN in x under it reaches y.
struct Bitmap {
  using View = BitmapView;
  static constexpr const char* kId = "bitmap";

  static std::int64_t rows(const View& w) noexcept { return w.rows; }
  static std::int64_t cols(const View& w) noexcept { return w.cols; }
  static std::int64_t stored(const View& w) noexcept { return w.stored; }
  static bool has_memory(const View& w) noexcept {
    return w.crow != nullptr && (w.bits != nullptr || w.rows * w.cols == 0);
  }

  template <class F>
  static void for_each_in_row(const View& w, std::int64_t row, F&& f) {
    const std::uint8_t* const bits = w.bits + row * w.row_bytes();
    std::int64_t slot = w.crow[row];
    for (std::int64_t byte = 0; byte < w.row_bytes(); ++byte)
      for (unsigned left = bits[byte]; left != 0; left &= left - 1)
        f(byte * 8 + std::countr_zero(left), slot++);
  }

  SPARSELOOM_API static void unpack(const View& w, const void* values, const MatrixView& dense,
                                    std::int64_t begin, std::int64_t end);
  /// values = the stored elements of rows [begin, end) of a matrix of their dtype.
  SPARSELOOM_API static void pack(const View& w, const ConstMatrixView& dense, void* values,
                                  std::int64_t begin, std::int64_t end);

  /// Throws Error naming the first row whose bounds differ from its number of bits, or that has a bit behind
  /// the last column. Reads bits and crow.
  SPARSELOOM_API static void validate(const char* op, const View& w);
};

static_assert(Layout<Bitmap>);

}  // namespace sparseloom
