// Tables of a dynamic index in vectors, and what they must hold for a mask.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "core/rng.h"
#include "sparseloom/layout.h"

namespace sparseloom::testing {

inline std::vector<std::uint8_t> random_mask(core::Rng& rng, int rows, int cols, double density) {
  std::vector<std::uint8_t> mask(static_cast<std::size_t>(rows) * static_cast<std::size_t>(cols));
  for (std::uint8_t& cell : mask) cell = static_cast<double>(rng.below(1000)) < 1000 * density;
  return mask;
}

inline void shuffle(core::Rng& rng, std::vector<std::uint8_t>& mask) {
  for (std::size_t i = mask.size(); i > 1; --i) std::swap(mask[i - 1], mask[rng.below(i)]);
}

struct Tables {
  int rows, cols;
  std::vector<std::int32_t> crow, col, ccol, row, slot, moved, requested{0};

  /// Those of a mask, made by the index's own constructor.
  Tables(int block_rows, int block_cols, const std::vector<std::uint8_t>& mask)
      : rows(block_rows), cols(block_cols) {
    const BlockIndex index = index_of(mask);
    const IndexView view = index.view();
    const TransposedView across = index.transposed();
    crow.assign(view.crow, view.crow + rows + 1);
    col.assign(view.col, view.col + view.blocks);
    ccol.assign(across.ccol, across.ccol + cols + 1);
    row.assign(across.row, across.row + view.blocks);
    slot.assign(across.slot, across.slot + view.blocks);
    moved.assign(col.size(), 0);
  }

  BlockIndex index_of(const std::vector<std::uint8_t>& mask) const {
    BlockPattern pattern(rows * 8, cols * 8, {8, 8});
    for (int r = 0; r < rows; ++r)
      for (int c = 0; c < cols; ++c)
        if (mask[static_cast<std::size_t>(r * cols + c)] != 0) pattern.set(r, c);
    return BlockIndex(pattern);
  }

  TopologyTables view() {
    return {rows,
            cols,
            static_cast<std::int64_t>(col.size()),
            crow.data(),
            col.data(),
            ccol.data(),
            row.data(),
            slot.data(),
            moved.data(),
            requested.data()};
  }

  /// All tables but moved. `mask` names exactly as many blocks as there are slots.
  void expect_index_of(const std::vector<std::uint8_t>& mask) const {
    const Tables expected(rows, cols, mask);
    EXPECT_EQ(crow, expected.crow);
    EXPECT_EQ(col, expected.col);
    EXPECT_EQ(ccol, expected.ccol);
    EXPECT_EQ(row, expected.row);
    EXPECT_EQ(slot, expected.slot);
  }

  /// Each block of `mask` comes from where `before` had it, or from nowhere.
  void expect_moved_from(const Tables& before, const std::vector<std::uint8_t>& mask) const {
    std::vector<std::int32_t> old(mask.size(), -1);
    for (int r = 0; r < rows; ++r)
      for (std::int32_t i = before.crow[static_cast<std::size_t>(r)];
           i < before.crow[static_cast<std::size_t>(r) + 1]; ++i)
        old[static_cast<std::size_t>(r * cols + before.col[static_cast<std::size_t>(i)])] = i;
    std::size_t next = 0;
    for (std::size_t cell = 0; cell < mask.size(); ++cell) {
      if (mask[cell] == 0) continue;
      EXPECT_EQ(moved[next++], old[cell]) << "cell " << cell;
    }
    EXPECT_EQ(next, moved.size());
  }
};

}  // namespace sparseloom::testing
