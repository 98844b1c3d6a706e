// n:m as a layout: the meaning of a view, and its checks.
#include "sparseloom/nm.h"

#include <string>

#include "core/check.h"
#include "layout/word.h"

namespace sparseloom {

void Nm::unpack(const View& w, const void* values, const MatrixView& dense, std::int64_t begin,
                std::int64_t end) {
  layout::unpack_rows<Nm>(w, values, dense, begin, end);
}

void Nm::validate(const char* op, const View& w) {
  if (w.n < 1 || w.n > w.m || w.m > 256)
    core::fail(op, "1 <= n <= m <= 256", "n=" + std::to_string(w.n) + " and m=" + std::to_string(w.m),
               "pass n=1, m=8 to store an eighth");
  if (!layout::countable(w.rows) || !layout::countable(w.cols))
    core::fail(op, "sizes from 0 to 2^31 - 1", core::shape(w.rows, w.cols), "pass the weight's shape");
  if (w.positions == nullptr && w.rows > 0 && w.cols > 0)
    core::fail(op, "positions", "a null pointer", "pass what nm_positions wrote");
  if (w.cols == 0) return;  // any number of rows without a position
  const std::uint8_t* at = w.positions;
  for (std::int64_t row = 0; row < w.rows; ++row)
    for (std::int64_t group = 0; group < w.groups(); ++group, at += w.n)
      for (std::int64_t i = 0; i < w.n; ++i)
        if (at[i] >= w.m || (i > 0 && at[i] <= at[i - 1]))
          core::fail(op, "ascending positions below " + std::to_string(w.m) + " in every group",
                     std::to_string(at[i]) + (i > 0 ? " after " + std::to_string(at[i - 1]) : "") +
                         " in row " + std::to_string(row) + ", group " + std::to_string(group),
                     "make positions with nm_positions");
}

}  // namespace sparseloom
