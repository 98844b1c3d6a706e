// CSR weights: single elements anywhere, row by row. This is the layout; csr_linear.h multiplies.
//
//   values  [stored] of the weight's dtype, row by row, in each row by column
//   crow    int32 [rows + 1]: row r has the elements [crow[r], crow[r + 1])
//   col     int32 [stored]: their columns, ascending in each row
#pragma once

#include <cstdint>

#include "sparseloom/export.h"
#include "sparseloom/layout_concept.h"
#include "sparseloom/matrix_view.h"

namespace sparseloom {

/// The index of a CSR matrix [rows, cols]; borrowed.
struct CsrView {
  std::int64_t rows = 0, cols = 0, stored = 0;
  const std::int32_t* crow = nullptr;
  const std::int32_t* col = nullptr;
  // The same elements by column, which dX on a CUDA device needs: column c has the entries [ccol[c], ccol[c +
  // 1]); of entry p, row[p] is the element's row, ascending in each column, and slot[p] its slot.
  const std::int32_t* ccol = nullptr;
  const std::int32_t* row = nullptr;
  const std::int32_t* slot = nullptr;
};

/// The layout (layout_concept.h). A stored zero is a stored element, and a NaN in x under it reaches y.
struct Csr {
  using View = CsrView;
  static constexpr const char* kId = "csr";

  static std::int64_t rows(const View& w) noexcept { return w.rows; }
  static std::int64_t cols(const View& w) noexcept { return w.cols; }
  static std::int64_t stored(const View& w) noexcept { return w.stored; }
  static bool has_memory(const View& w) noexcept {
    return w.crow != nullptr && (w.col != nullptr || w.stored == 0);
  }

  template <class F>
  static void for_each_in_row(const View& w, std::int64_t row, F&& f) {
    for (std::int64_t i = w.crow[row]; i < w.crow[row + 1]; ++i) f(std::int64_t{w.col[i]}, i);
  }

  SPARSELOOM_API static void unpack(const View& w, const void* values, const MatrixView& dense,
                                    std::int64_t begin, std::int64_t end);

  /// Throws Error naming the first row whose bounds do not ascend, or the first element whose column is not
  /// greater than the previous one or lies outside the matrix. Reads crow and col.
  SPARSELOOM_API static void validate(const char* op, const View& w);
};

static_assert(Layout<Csr>);

}  // namespace sparseloom
