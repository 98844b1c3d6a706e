// n:m weights: of each group of m consecutive inputs of an output, n elements are stored. This is the layout;
// nm_ops.h chooses and packs. 2:4 has a denser format and faster kernels of its own
// (semi24.h).
//
//   values     [rows, groups, n], of the weight's dtype. groups = ceil(cols / m).
//   positions  uint8 [rows, groups, n]: where in its group each element lies, ascending.
//
// In a last group that cols cuts, positions may lie beyond cols; their values are zero.
#pragma once

#include <cstdint>

#include "sparseloom/export.h"
#include "sparseloom/layout_concept.h"
#include "sparseloom/matrix_view.h"

namespace sparseloom {

/// The positions of an n:m matrix [rows, cols]; borrowed.
struct NmView {
  std::int64_t rows = 0, cols = 0, n = 1, m = 1;
  const std::uint8_t* positions = nullptr;  // [rows, groups(), n]

  std::int64_t groups() const noexcept { return m > 0 ? (cols + m - 1) / m : 0; }
};

/// The layout (layout_concept.h). Slots: the values in their order.
struct Nm {
  using View = NmView;
  static constexpr const char* kId = "nm";

  static std::int64_t rows(const View& w) noexcept { return w.rows; }
  static std::int64_t cols(const View& w) noexcept { return w.cols; }
  static std::int64_t stored(const View& w) noexcept { return w.rows * w.groups() * w.n; }
  static bool has_memory(const View& w) noexcept { return w.positions != nullptr || stored(w) == 0; }

  /// n and m, 16 bits each from the lowest on.
  static std::int64_t shape(const View& w) noexcept { return w.n | w.m << 16; }

  template <class F>
  static void for_each_in_row(const View& w, std::int64_t row, F&& f) {
    std::int64_t slot = row * w.groups() * w.n;
    for (std::int64_t first = 0; first < w.cols; first += w.m)
      for (std::int64_t i = 0; i < w.n; ++i, ++slot)
        if (const std::int64_t col = first + w.positions[slot]; col < w.cols) f(col, slot);
  }

  SPARSELOOM_API static void unpack(const View& w, const void* values, const MatrixView& dense,
                                    std::int64_t begin, std::int64_t end);

  /// Throws Error unless 1 <= n <= m <= 256, naming the row and group of the first position that is not below
  /// m or not above the previous one.
  SPARSELOOM_API static void validate(const char* op, const View& w);
};

static_assert(Layout<Nm>);

}  // namespace sparseloom
