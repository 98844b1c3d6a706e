// CSR as a layout: copies to dense rows, which copy bytes of any dtype, and checks.
#include "sparseloom/csr.h"

#include <string>

#include "core/check.h"
#include "layout/word.h"

namespace sparseloom {

void Csr::unpack(const View& w, const void* values, const MatrixView& dense, std::int64_t begin,
                 std::int64_t end) {
  layout::unpack_rows<Csr>(w, values, dense, begin, end);
}

void Csr::validate(const char* op, const View& w) {
  const char* const remedy = "make the index with layouts.Csr, which sorts it";
  if (!layout::countable(w.rows) || !layout::countable(w.cols) || w.stored < 0)
    core::fail(op, "sizes from 0 to 2^31 - 1", core::shape(w.rows, w.cols), "pass the weight's shape");
  if (w.crow == nullptr || (w.col == nullptr && w.stored > 0))
    core::fail(op, "crow and col", "a null pointer", "pass the index of the weight");
  if (w.crow[0] != 0 || w.crow[w.rows] != w.stored)
    core::fail(op, "crow from 0 to the " + std::to_string(w.stored) + " stored elements",
               std::to_string(w.crow[0]) + " to " + std::to_string(w.crow[w.rows]), remedy);
  for (std::int64_t row = 0; row < w.rows; ++row) {
    const std::int64_t begin = w.crow[row], end = w.crow[row + 1];
    if (begin > end || end > w.stored)
      core::fail(op, "ascending crow",
                 std::to_string(begin) + " and " + std::to_string(end) + " at row " + std::to_string(row),
                 remedy);
    std::int64_t before = -1;
    for (std::int64_t i = begin; i < end; before = w.col[i++])
      if (w.col[i] <= before || w.col[i] >= w.cols)
        core::fail(
            op, "ascending columns below " + std::to_string(w.cols),
            "col[" + std::to_string(i) + "] = " + std::to_string(w.col[i]) + " in row " + std::to_string(row),
            remedy);
  }
}

}  // namespace sparseloom
