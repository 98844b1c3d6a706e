// ELL as somebody outside of the library would write it: every row has the same number of slots, row-major; a
// row with fewer elements ends with slots of column -1. docs/add_a_layout.md shows how.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>

#include "sparseloom/layout_concept.h"

namespace outside {

struct EllView {
  std::int64_t rows = 0, cols = 0;
  std::int64_t width = 0;             // slots of a row
  const std::int32_t* col = nullptr;  // [rows, width], ascending in a row, then -1 as padding
};

struct Ell {
  using View = EllView;
  static constexpr const char* kId = "ell";

  static std::int64_t rows(const View& w) { return w.rows; }
  static std::int64_t cols(const View& w) { return w.cols; }
  static std::int64_t stored(const View& w) { return w.rows * w.width; }

  template <class F>
  static void for_each_in_row(const View& w, std::int64_t row, F&& f) {
    for (std::int64_t slot = row * w.width; slot < (row + 1) * w.width && w.col[slot] >= 0; ++slot)
      f(std::int64_t{w.col[slot]}, slot);
  }

  static void unpack(const View& w, const void* values, const sparseloom::MatrixView& dense,
                     std::int64_t begin, std::int64_t end) {
    const std::size_t size = size_of(dense.dtype);
    for (std::int64_t row = begin; row < end; ++row) {
      auto* target =
          static_cast<std::byte*>(dense.data) + static_cast<std::size_t>(row * dense.stride) * size;
      std::memset(target, 0, static_cast<std::size_t>(w.cols) * size);
      for_each_in_row(w, row, [&](std::int64_t col, std::int64_t slot) {
        std::memcpy(target + static_cast<std::size_t>(col) * size,
                    static_cast<const std::byte*>(values) + static_cast<std::size_t>(slot) * size, size);
      });
    }
  }

  static void validate(const char* op, const View& w) {
    for (std::int64_t slot = 0; slot < stored(w); ++slot) {
      const bool first = slot % w.width == 0, ended = !first && w.col[slot - 1] < 0;
      const std::int64_t least = ended ? w.cols : first ? 0 : std::int64_t{w.col[slot - 1]} + 1;
      if (w.col[slot] == -1 || (w.col[slot] >= least && w.col[slot] < w.cols)) continue;
      throw sparseloom::Error(op, "columns in ascending order inside the matrix, then -1",
                              "col[" + std::to_string(slot) + "] = " + std::to_string(w.col[slot]),
                              "sort each row's columns, and the values with them");
    }
  }
};

static_assert(sparseloom::Layout<Ell>);

}  // namespace outside
