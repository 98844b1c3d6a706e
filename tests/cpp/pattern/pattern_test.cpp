// BlockPattern itself: bits, counts, statistics, set algebra, refusals.
#include "sparseloom/pattern.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <tuple>

#include "core/expect_error.h"

namespace sparseloom {
namespace {

using test::expect_error;
constexpr BlockShape kBlock{16, 32};

TEST(BlockPattern, CutsTheMatrixAndRoundsUp) {
  const BlockPattern pattern(40, 72, kBlock);
  EXPECT_EQ(pattern.rows(), 40);
  EXPECT_EQ(pattern.cols(), 72);
  EXPECT_EQ(pattern.block(), kBlock);
  EXPECT_EQ(pattern.block_rows(), 3);
  EXPECT_EQ(pattern.block_cols(), 3);
  EXPECT_EQ(pattern.count(), 0);
  EXPECT_EQ(BlockPattern(0, 72, kBlock).block_rows(), 0);
  EXPECT_EQ(BlockPattern(1, 1, kBlock).block_cols(), 1);
}

TEST(BlockPattern, SetsAndClearsOneBitOnly) {
  for (const std::int64_t grid_cols : {1, 63, 64, 65, 130}) {
    BlockPattern pattern(3 * 8, grid_cols * 8, {8, 8});
    for (std::int64_t c = 0; c < grid_cols; ++c) {
      pattern.set(1, c);
      EXPECT_TRUE(pattern.test(1, c));
      EXPECT_EQ(pattern.count(), 1);
      EXPECT_EQ(pattern.row_count(1), 1);
      EXPECT_EQ(pattern.row_count(0) + pattern.row_count(2), 0);
      pattern.set(1, c, false);
      EXPECT_FALSE(pattern.test(1, c));
    }
    EXPECT_EQ(pattern, BlockPattern(3 * 8, grid_cols * 8, {8, 8}));
  }
}

TEST(BlockPattern, StatsLeaveOutRaggedPadding) {
  BlockPattern pattern(40, 72, kBlock);  // block rows of 16, 16, 8; block columns of 32, 32, 8
  pattern.set(0, 0);
  pattern.set(0, 2);
  pattern.set(2, 1);
  pattern.set(2, 2);
  const PatternStats stats = pattern.stats();
  EXPECT_EQ(stats.blocks, 4);
  EXPECT_EQ(stats.elements, 16 * 32 + 16 * 8 + 8 * 32 + 8 * 8);
  EXPECT_DOUBLE_EQ(stats.block_density, 4.0 / 9);
  EXPECT_DOUBLE_EQ(stats.element_density, 960.0 / (40 * 72));
  EXPECT_EQ(stats.row_min, 0);
  EXPECT_EQ(stats.row_max, 2);
  EXPECT_DOUBLE_EQ(stats.row_mean, 4.0 / 3);
}

TEST(BlockPattern, StatsOfFullAndEmpty) {
  const PatternStats full = pattern::full(41, 73, kBlock).stats();
  EXPECT_EQ(full.elements, 41 * 73);
  EXPECT_DOUBLE_EQ(full.element_density, 1);
  EXPECT_DOUBLE_EQ(full.block_density, 1);
  EXPECT_EQ(full.row_min, 3);
  for (const auto& [rows, cols] : {std::pair{0, 0}, {0, 64}, {64, 0}}) {
    const PatternStats none = pattern::full(rows, cols, kBlock).stats();
    EXPECT_EQ(none.blocks + none.elements + none.row_min + none.row_max, 0);
    EXPECT_EQ(none.block_density + none.element_density + none.row_mean, 0);
  }
}

class SetAlgebra : public testing::TestWithParam<std::tuple<std::int64_t, std::int64_t, BlockShape>> {};

TEST_P(SetAlgebra, HoldsBlockByBlock) {
  const auto& [rows, cols, block] = GetParam();
  const BlockPattern a = pattern::random(rows, cols, block, 0.4, 1),
                     b = pattern::random(rows, cols, block, 0.5, 2);
  const BlockPattern both = a & b, any = a | b, one = a ^ b, left = a - b, none = ~a, across = a.transposed();
  for (std::int64_t r = 0; r < a.block_rows(); ++r) {
    for (std::int64_t c = 0; c < a.block_cols(); ++c) {
      const bool x = a.test(r, c), y = b.test(r, c);
      ASSERT_EQ(both.test(r, c), x && y);
      ASSERT_EQ(any.test(r, c), x || y);
      ASSERT_EQ(one.test(r, c), x != y);
      ASSERT_EQ(left.test(r, c), x && !y);
      ASSERT_EQ(none.test(r, c), !x);
      ASSERT_EQ(across.test(c, r), x);
    }
  }
  // count() sees the unused high bits, which test() does not: these catch an operator that sets them.
  EXPECT_EQ(none.count(), a.block_rows() * a.block_cols() - a.count());
  EXPECT_EQ(~none, a);
  EXPECT_EQ(any, ~(~a & ~b));
  EXPECT_EQ(one, any - both);
  EXPECT_EQ(across.rows(), cols);
  EXPECT_EQ(across.block(), (BlockShape{block.cols, block.rows}));
  EXPECT_EQ(across.transposed(), a);
}

INSTANTIATE_TEST_SUITE_P(
    Sizes, SetAlgebra,
    testing::Values(std::tuple{256, 512, BlockShape{8, 8}}, std::tuple{100, 70, BlockShape{16, 32}},
                    std::tuple{9, 8 * 65, BlockShape{8, 8}}, std::tuple{300, 8 * 63 + 1, BlockShape{64, 8}},
                    std::tuple{1, 1, BlockShape{128, 128}}, std::tuple{0, 64, BlockShape{8, 8}},
                    std::tuple{64, 0, BlockShape{8, 8}}));

TEST(BlockPattern, RefusesToMixShapes) {
  const BlockPattern pattern(64, 64, {8, 8});
  expect_error("pattern &", {"[64, 64] in blocks of 8x8", "[64, 72]"}, [&] {
    pattern& BlockPattern(64, 72, {8, 8});
  });
  expect_error("pattern |", {"[72, 64]"}, [&] { pattern | BlockPattern(72, 64, {8, 8}); });
  expect_error("pattern ^", {"8x16"}, [&] { pattern ^ BlockPattern(64, 64, {8, 16}); });
  expect_error("pattern -", {"16x8"}, [&] { pattern - BlockPattern(64, 64, {16, 8}); });
  EXPECT_NE(pattern, BlockPattern(63, 64, {8, 8}));  // the same grid, another matrix
}

TEST(BlockPattern, AcceptsTheTwentyFiveBlockShapesAndNoOther) {
  int accepted = 0;
  for (std::int32_t rows = -8; rows <= 256; ++rows) {
    for (const std::int32_t cols : {8, 16, 32, 64, 128, 0, 24, 256, -8}) {
      try {
        require_supported("test", {rows, cols});
        ++accepted;
      } catch (const Error&) {
      }
    }
  }
  EXPECT_EQ(accepted, 25);
  EXPECT_EQ(to_string(kBlock), "16x32");
  expect_error("test", {"got 48x32", "{8, 16, 32, 64, 128}"}, [] { require_supported("test", {48, 32}); });
}

TEST(BlockPattern, RefusesImpossibleSizes) {
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  expect_error("BlockPattern", {"rows >= 0", "[-1, 8]"}, [] { BlockPattern(-1, 8, {8, 8}); });
  expect_error("BlockPattern", {"cols >= 0", "[8, -9223372036854775808]"}, [] {
    BlockPattern(8, -kMax - 1, {8, 8});
  });
  expect_error("BlockPattern", {"2^31 - 1 blocks"}, [] { BlockPattern(kMax, kMax, {8, 8}); });
  expect_error("BlockPattern", {"2^31 - 1 blocks"}, [] { BlockPattern(0, kMax, {128, 128}); });
  expect_error("BlockPattern", {"2^60 elements"}, [] {
    BlockPattern(std::int64_t{1} << 37, std::int64_t{1} << 37, {128, 128});
  });
  expect_error("BlockPattern", {"2^60 elements"}, [] {
    BlockPattern(std::int64_t{1} << 30, (std::int64_t{1} << 30) + 1, {128, 128});
  });
  expect_error("BlockPattern", {"0x0"}, [] { BlockPattern(8, 8, {}); });
}

}  // namespace
}  // namespace sparseloom
