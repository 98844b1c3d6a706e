#include "plan/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "sparseloom/pattern.h"

namespace sparseloom::plan {
namespace {

// One heavy row, the rest light: block row 0 holds every column, the others one block each.
BlockIndex skewed() {
  BlockPattern pattern(64 * 32, 64 * 32, {32, 32});
  for (int c = 0; c < 64; ++c) pattern.set(0, c);
  for (int r = 1; r < 64; ++r) pattern.set(r, 63 - r);
  return BlockIndex(pattern);
}

TEST(CostPrefix, CountsBlocksOfRowsAndOfColumns) {
  const BlockIndex index = skewed();
  const auto forward = cost_prefix(Direction::forward, index.view());
  ASSERT_EQ(forward.size(), 65u);
  const std::int64_t store = forward[2] - forward[1] - 32;  // a row of one block: 32 steps and the store
  EXPECT_GT(store, 0);
  EXPECT_EQ(forward[1] - forward[0], 64 * 32 + store);
  const auto dx = cost_prefix(Direction::dx, index.view());
  EXPECT_EQ(dx[1] - dx[0], 2 * 32 + store);    // column 0: the heavy row and row 63
  EXPECT_EQ(dx[64] - dx[63], 1 * 32 + store);  // column 63: the heavy row alone (row 0's own)
  EXPECT_EQ(dx.back(), forward.back());        // the same blocks, square blocks
  EXPECT_TRUE(cost_prefix(Direction::dw, index.view()).empty());
}

TEST(CostPrefix, IsMonotoneOnAnEmptyPattern) {
  const BlockIndex index(BlockPattern(100, 40, {32, 8}));
  const auto prefix = cost_prefix(Direction::forward, index.view());
  ASSERT_EQ(prefix.size(), 5u);
  EXPECT_TRUE(std::is_sorted(prefix.begin(), prefix.end()));
  EXPECT_GT(prefix.back(), 0);  // empty rows still write their bias
}

}  // namespace
}  // namespace sparseloom::plan
