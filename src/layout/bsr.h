// layout::Bsr: BSR as a Layout, over the index views of sparseloom/layout.h.
#pragma once

#include <algorithm>
#include <cstdint>

#include "sparseloom/layout.h"
#include "sparseloom/layout_concept.h"

namespace sparseloom::layout {

struct Bsr {
  using View = IndexView;
  using Transposed = TransposedView;
  static constexpr const char* kId = "bsr";

  static std::int64_t rows(const View& view) noexcept { return view.rows; }
  static std::int64_t cols(const View& view) noexcept { return view.cols; }
  static std::int64_t stored(const View& view) noexcept { return view.blocks * view.block_elements(); }

  template <class F>
  static void for_each_in_row(const View& view, std::int64_t row, F&& f) {
    const std::int64_t r = row / view.block.rows;
    for (std::int64_t b = view.crow[r]; b < view.crow[r + 1]; ++b) {
      const std::int64_t first = std::int64_t{view.col[b]} * view.block.cols;
      const std::int64_t present = std::min<std::int64_t>(view.block.cols, view.cols - first);
      const std::int64_t at = b * view.block_elements() + row % view.block.rows * view.block.cols;
      for (std::int64_t i = 0; i < present; ++i) f(first + i, at + i);
    }
  }

  template <class F>
  static void for_each_in_col(const View& view, const Transposed& transposed, std::int64_t col, F&& f) {
    const std::int64_t c = col / view.block.cols;
    for (std::int64_t b = transposed.ccol[c]; b < transposed.ccol[c + 1]; ++b) {
      const std::int64_t first = std::int64_t{transposed.row[b]} * view.block.rows;
      const std::int64_t present = std::min<std::int64_t>(view.block.rows, view.rows - first);
      const std::int64_t at =
          std::int64_t{transposed.slot[b]} * view.block_elements() + col % view.block.cols;
      for (std::int64_t o = 0; o < present; ++o) f(first + o, at + o * view.block.cols);
    }
  }

  /// sparseloom::unpack() for the rows [begin, end) only, without checks.
  static void unpack(const View& view, const void* values, const MatrixView& dense, std::int64_t begin,
                     std::int64_t end);

  static void validate(const char* op, const View& view);
};

static_assert(TransposedLayout<Bsr>);

}  // namespace sparseloom::layout
