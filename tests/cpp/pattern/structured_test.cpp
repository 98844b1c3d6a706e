// Generators without a seed: banded, block_diagonal, full, from_mask.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <vector>

#include "core/expect_error.h"
#include "pattern/pictures.h"
#include "sparseloom/pattern.h"

namespace sparseloom {
namespace {

using test::expect_error;
using test::from_picture;
using test::row_counts;

TEST(Banded, LooksAsDrawn) {
  EXPECT_EQ(pattern::banded(40, 40, {8, 8}, 0), from_picture({"#....", ".#...", "..#..", "...#.", "....#"}));
  EXPECT_EQ(pattern::banded(40, 40, {8, 8}, 1), from_picture({"##...", "###..", ".###.", "..###", "...##"}));
  EXPECT_EQ(pattern::banded(16, 48, {8, 8}, 0), from_picture({"###...", "...###"}));
  EXPECT_EQ(pattern::banded(24, 56, {8, 8}, 0), from_picture({"##.....", "..###..", ".....##"}));
  EXPECT_EQ(pattern::banded(24, 56, {8, 8}, 1), from_picture({"#####..", "#######", "..#####"}));
  EXPECT_EQ(pattern::banded(56, 24, {8, 8}, 0),
            from_picture({"#..", "#..", ".#.", ".#.", ".#.", "..#", "..#"}));
}

TEST(Banded, CoversEveryRowAndColumnOfAnyGrid) {
  for (int grid_rows = 1; grid_rows <= 24; ++grid_rows) {
    for (int grid_cols = 1; grid_cols <= 24; ++grid_cols) {
      const std::int64_t rows = grid_rows * 16 - 1, cols = grid_cols * 8 - 7;
      const BlockPattern diagonal = pattern::banded(rows, cols, {16, 8}, 0);
      ASSERT_EQ(diagonal.count(), std::max(grid_rows, grid_cols));
      ASSERT_GE(diagonal.stats().row_min, 1);
      ASSERT_GE(diagonal.transposed().stats().row_min, 1);
      ASSERT_EQ(diagonal, pattern::banded(cols, rows, {8, 16}, 0).transposed());
      // Both corners belong to the diagonal, whatever the proportions.
      ASSERT_TRUE(diagonal.test(0, 0) && diagonal.test(grid_rows - 1, grid_cols - 1));
      for (const std::int64_t bandwidth : {1, 2, 5}) {
        const BlockPattern band = pattern::banded(rows, cols, {16, 8}, bandwidth);
        ASSERT_EQ(pattern::banded(rows, cols, {16, 8}, bandwidth - 1) - band,
                  BlockPattern(rows, cols, {16, 8}));
        if (grid_rows != grid_cols) continue;
        for (int r = 0; r < grid_rows; ++r) {
          for (int c = 0; c < grid_cols; ++c) ASSERT_EQ(band.test(r, c), std::abs(r - c) <= bandwidth);
        }
      }
      ASSERT_EQ(pattern::banded(rows, cols, {16, 8}, std::numeric_limits<std::int64_t>::max()),
                pattern::full(rows, cols, {16, 8}));
    }
  }
}

TEST(Banded, OfAnEmptyMatrixIsEmptyAndNegativeIsRefused) {
  EXPECT_EQ(pattern::banded(0, 64, {8, 8}, 3).count(), 0);
  EXPECT_EQ(pattern::banded(64, 0, {8, 8}, 3).count(), 0);
  expect_error("pattern.banded", {"bandwidth >= 0", "got -1"}, [] { pattern::banded(64, 64, {8, 8}, -1); });
}

TEST(BlockDiagonal, LooksAsDrawn) {
  EXPECT_EQ(pattern::block_diagonal(32, 32, {8, 8}, 2), from_picture({"##..", "##..", "..##", "..##"}));
  EXPECT_EQ(pattern::block_diagonal(24, 40, {8, 8}, 2), from_picture({"##...", "..###", "..###"}));
  EXPECT_EQ(pattern::block_diagonal(24, 40, {8, 8}, 1), pattern::full(24, 40, {8, 8}));
}

TEST(BlockDiagonal, IsEvenCoversAllAndOverlapsNowhere) {
  for (int grid_rows = 1; grid_rows <= 17; ++grid_rows) {
    for (int grid_cols = 1; grid_cols <= 17; ++grid_cols) {
      for (int groups = 1; groups <= std::min(grid_rows, grid_cols); ++groups) {
        const BlockPattern boxes = pattern::block_diagonal(grid_rows * 8, grid_cols * 8, {8, 8}, groups);
        for (const BlockPattern& side : {boxes, boxes.transposed()}) {
          const PatternStats stats = side.stats();
          ASSERT_GE(stats.row_min, side.block_cols() / groups);
          ASSERT_LE(stats.row_max, (side.block_cols() + groups - 1) / groups);
        }
        // A path down the rows: each row equals the one above or starts where that one ended.
        int changes = 0;
        for (int r = 1; r < grid_rows; ++r) {
          bool same = true, disjoint = true;
          for (int c = 0; c < grid_cols; ++c) {
            same &= boxes.test(r, c) == boxes.test(r - 1, c);
            disjoint &= !(boxes.test(r, c) && boxes.test(r - 1, c));
          }
          ASSERT_TRUE(same || disjoint);
          changes += !same;
        }
        ASSERT_EQ(changes, groups - 1);
      }
    }
  }
}

TEST(BlockDiagonal, ShuffledTakesColumnsFromAllGroupsInTurn) {
  EXPECT_EQ(pattern::block_diagonal(32, 48, {8, 8}, 2, true),
            from_picture({"##.#..", "##.#..", "..#.##", "..#.##"}));
  EXPECT_EQ(pattern::block_diagonal(24, 40, {8, 8}, 2, true), from_picture({"#.#..", ".#.##", ".#.##"}));
  for (int grid_rows = 1; grid_rows <= 13; ++grid_rows) {
    for (int grid_cols = 1; grid_cols <= 13; ++grid_cols) {
      for (int groups = 1; groups <= std::min(grid_rows, grid_cols); ++groups) {
        const BlockPattern plain = pattern::block_diagonal(grid_rows * 8, grid_cols * 8, {8, 8}, groups);
        const BlockPattern made = pattern::block_diagonal(grid_rows * 8, grid_cols * 8, {8, 8}, groups, true);
        ASSERT_EQ(row_counts(made), row_counts(plain));
        std::vector<std::int64_t> columns = row_counts(made.transposed());
        std::vector<std::int64_t> plain_columns = row_counts(plain.transposed());
        std::sort(columns.begin(), columns.end());
        std::sort(plain_columns.begin(), plain_columns.end());
        ASSERT_EQ(columns, plain_columns);
      }
    }
  }
}

// As the group convolutions of ShuffleNet have it: channel b * (C / g) + a goes to place a * g + b.
TEST(BlockDiagonal, ShuffleIsReshapeAndTranspose) {
  const int cols = 24, groups = 4;
  const BlockPattern made = pattern::block_diagonal(64, cols * 8, {8, 8}, groups, true);
  const BlockPattern plain = pattern::block_diagonal(64, cols * 8, {8, 8}, groups);
  for (int r = 0; r < 8; ++r) {
    for (int a = 0; a < cols / groups; ++a) {
      for (int b = 0; b < groups; ++b)
        ASSERT_EQ(made.test(r, b * (cols / groups) + a), plain.test(r, a * groups + b));
    }
  }
}

TEST(BlockDiagonal, RefusesGroupsThatDoNotFit) {
  expect_error("pattern.block_diagonal", {"1 <= groups <= 3", "got 4"}, [] {
    pattern::block_diagonal(24, 40, {8, 8}, 4);
  });
  expect_error("pattern.block_diagonal", {"got 0"}, [] { pattern::block_diagonal(24, 40, {8, 8}, 0); });
  expect_error("pattern.block_diagonal", {"got 1"}, [] { pattern::block_diagonal(0, 40, {8, 8}, 1); });
}

TEST(FromMask, TakesAnyNonZeroAndChecksTheSize) {
  const std::vector<std::uint8_t> mask = {1, 0, 255, 0, 2, 0};
  EXPECT_EQ(pattern::from_mask(16, 24, {8, 8}, mask), from_picture({"#.#", ".#."}));
  EXPECT_EQ(pattern::from_mask(0, 24, {8, 8}, {}).count(), 0);
  expect_error("pattern.from_mask", {"[2, 4] = 8 blocks", "6 entries"}, [&] {
    pattern::from_mask(16, 32, {8, 8}, mask);
  });
}

TEST(Full, HasEveryBlockAndNoMore) {
  for (const std::int64_t grid_cols : {1, 63, 64, 65}) {
    EXPECT_EQ(row_counts(pattern::full(17, grid_cols * 8, {8, 8})), std::vector<std::int64_t>(3, grid_cols));
  }
}

}  // namespace
}  // namespace sparseloom
