// A layout: the diagonal of W, and dense square blocks beside it. A gradient always reaches each output's own
// input, and whole blocks mix the others.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "sparseloom/layout_concept.h"

namespace example {

struct View {
  std::int64_t rows = 0, cols = 0;
  std::int64_t side = 0;  // of a block; a multiple of 8 that divides rows and cols
  std::int64_t blocks = 0;
  const std::int32_t* crow = nullptr;  // [rows / side + 1]: where each block row begins in col
  const std::int32_t* col =
      nullptr;  // [blocks]: block columns, ascending in a block row, none on the diagonal
};

/// Slots: the diagonal [min(rows, cols)], then the blocks [blocks, side, side], row-major.
struct DiagonalPlusBlocks {
  using View = example::View;
  static constexpr const char* kId = "diagonal_plus_blocks";

  static std::int64_t rows(const View& w) { return w.rows; }
  static std::int64_t cols(const View& w) { return w.cols; }
  static std::int64_t diagonal(const View& w) { return std::min(w.rows, w.cols); }
  static std::int64_t stored(const View& w) { return diagonal(w) + w.blocks * w.side * w.side; }

  template <class F>
  static void for_each_in_row(const View& w, std::int64_t row, F&& f) {
    bool on_diagonal = row < diagonal(w);
    for (std::int64_t b = w.crow[row / w.side]; b < w.crow[row / w.side + 1]; ++b) {
      const std::int64_t first = w.col[b] * w.side, at = diagonal(w) + (b * w.side + row % w.side) * w.side;
      if (on_diagonal && first > row) f(row, row), on_diagonal = false;  // columns come in ascending order
      for (std::int64_t i = 0; i < w.side; ++i) f(first + i, at + i);
    }
    if (on_diagonal) f(row, row);
  }

  static void unpack(const View& w, const void* values, const sparseloom::MatrixView& dense,
                     std::int64_t begin, std::int64_t end) {
    const std::size_t size = size_of(dense.dtype);
    for (std::int64_t row = begin; row < end; ++row) {
      auto* const target =
          static_cast<std::byte*>(dense.data) + static_cast<std::size_t>(row * dense.stride) * size;
      std::memset(target, 0, static_cast<std::size_t>(w.cols) * size);
      for_each_in_row(w, row, [&](std::int64_t col, std::int64_t slot) {
        std::memcpy(target + static_cast<std::size_t>(col) * size,
                    static_cast<const std::byte*>(values) + static_cast<std::size_t>(slot) * size, size);
      });
    }
  }

  static void validate(const char* op, const View& w) {
    const auto refuse = [&](const std::string& got) {
      throw sparseloom::Error(
          op, "blocks of a multiple of 8 that divide the matrix, in ascending order and beside the diagonal",
          got, "make the index with DiagonalPlusBlocks.from_dense");
    };
    if (w.side <= 0 || w.side % 8 != 0 || w.rows % w.side != 0 || w.cols % w.side != 0)
      refuse("blocks of " + std::to_string(w.side) + " in [" + std::to_string(w.rows) + ", " +
             std::to_string(w.cols) + "]");
    const std::int64_t block_rows = w.rows / w.side;
    if (w.crow[0] != 0 || w.crow[block_rows] != w.blocks) refuse("crow that does not span [0, blocks]");
    for (std::int64_t r = 0; r < block_rows; ++r) {
      if (w.crow[r] > w.crow[r + 1] || w.crow[r + 1] > w.blocks)
        refuse("crow[" + std::to_string(r + 1) + "] = " + std::to_string(w.crow[r + 1]));
      for (std::int64_t b = w.crow[r]; b < w.crow[r + 1]; ++b)
        if (w.col[b] < (b > w.crow[r] ? w.col[b - 1] + 1 : 0) || w.col[b] >= w.cols / w.side || w.col[b] == r)
          refuse("col[" + std::to_string(b) + "] = " + std::to_string(w.col[b]));
    }
  }
};

static_assert(sparseloom::Layout<DiagonalPlusBlocks>);

}  // namespace example
