// The owning index: both directions, and the version that plans are cached by.
#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "pattern/pictures.h"
#include "sparseloom/layout.h"

namespace sparseloom {
namespace {

using test::from_picture;

std::vector<std::int32_t> list(const std::int32_t* first, std::int64_t count) {
  return {first, first + count};
}

TEST(BlockIndex, ListsBlocksByRowAndByColumn) {
  const BlockIndex index(from_picture({"#.#", "...", ".##"}, {16, 32}));
  const IndexView view = index.view();
  EXPECT_EQ(view.blocks, 4);
  EXPECT_EQ(view.block_rows(), 3);
  EXPECT_EQ(view.block_cols(), 3);
  EXPECT_EQ(view.block_elements(), 512);
  EXPECT_EQ(list(view.crow, 4), (std::vector<std::int32_t>{0, 2, 2, 4}));
  EXPECT_EQ(list(view.col, 4), (std::vector<std::int32_t>{0, 2, 1, 2}));
  const TransposedView across = index.transposed();
  EXPECT_EQ(list(across.ccol, 4), (std::vector<std::int32_t>{0, 1, 2, 4}));
  EXPECT_EQ(list(across.row, 4), (std::vector<std::int32_t>{0, 2, 0, 2}));
  EXPECT_EQ(list(across.slot, 4), (std::vector<std::int32_t>{0, 2, 1, 3}));
}

class Indices : public testing::TestWithParam<std::tuple<std::int64_t, std::int64_t, BlockShape, double>> {
 protected:
  BlockPattern pattern(std::uint64_t seed = 1) const {
    const auto& [rows, cols, block, density] = GetParam();
    return pattern::random(rows, cols, block, density, seed);
  }
};

TEST_P(Indices, HoldThePattern) {
  const BlockIndex index(pattern());
  EXPECT_EQ(index.pattern(), pattern());
  EXPECT_EQ(index.view().blocks, pattern().count());
}

TEST_P(Indices, TransposedListsTheSameBlocks) {
  const BlockIndex index(pattern());
  const IndexView view = index.view();
  const TransposedView across = index.transposed();
  // Swapping the roles gives the index of the transposed pattern, and slot names each block once, at its
  // place in the row order.
  const BlockIndex mirror(pattern().transposed());
  EXPECT_EQ(list(across.ccol, view.block_cols() + 1), list(mirror.view().crow, view.block_cols() + 1));
  EXPECT_EQ(list(across.row, view.blocks), list(mirror.view().col, view.blocks));
  std::set<std::int32_t> slots;
  for (std::int64_t c = 0; c < view.block_cols(); ++c) {
    for (std::int32_t i = across.ccol[c]; i < across.ccol[c + 1]; ++i) {
      const std::int32_t slot = across.slot[i];
      slots.insert(slot);
      ASSERT_EQ(view.col[slot], c);
      ASSERT_TRUE(view.crow[across.row[i]] <= slot && slot < view.crow[across.row[i] + 1]);
    }
  }
  EXPECT_EQ(static_cast<std::int64_t>(slots.size()), view.blocks);
}

TEST_P(Indices, CopiesAndMovesStandOnTheirOwn) {
  BlockIndex index(pattern());
  const BlockIndex copy = index;
  EXPECT_NE(copy.view().crow, index.view().crow);
  const BlockIndex moved = std::move(index);
  EXPECT_EQ(moved.pattern(), copy.pattern());
  EXPECT_EQ(moved.version(), copy.version());
}

TEST_P(Indices, VersionIsTheContent) {
  const BlockIndex index(pattern());
  const IndexView view = index.view();
  const BlockIndex again(view.rows, view.cols, view.block,
                         {view.crow, static_cast<std::size_t>(view.block_rows()) + 1},
                         {view.col, static_cast<std::size_t>(view.blocks)});
  EXPECT_EQ(again.version(), index.version());
  EXPECT_EQ(pattern_version(view), index.version());
  EXPECT_GE(index.version(), 0);
  if (view.rows > 0 && view.cols > 0) {
    BlockPattern other = pattern();
    other.set(0, 0, !other.test(0, 0));
    EXPECT_NE(BlockIndex(other).version(), index.version());
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, Indices,
                         testing::Values(std::tuple{256, 256, BlockShape{32, 32}, 0.3},
                                         std::tuple{250, 130, BlockShape{16, 64}, 0.5},
                                         std::tuple{1000, 40, BlockShape{8, 8}, 0.05},
                                         std::tuple{40, 1000, BlockShape{8, 8}, 0.05},
                                         std::tuple{128, 128, BlockShape{8, 16}, 1.0},
                                         std::tuple{128, 128, BlockShape{8, 16}, 0.0},
                                         std::tuple{1, 1, BlockShape{128, 128}, 1.0},
                                         std::tuple{0, 100, BlockShape{8, 8}, 0.5},
                                         std::tuple{100, 0, BlockShape{8, 8}, 0.5},
                                         std::tuple{0, 0, BlockShape{8, 8}, 0.5}));

// Computed by a second implementation, in another language: versions are written to files.
TEST(PatternVersion, KeepsItsValue) {
  const std::vector<std::int32_t> crow = {0, 2, 2, 3}, col = {0, 2, 1};
  EXPECT_EQ(BlockIndex(40, 72, {16, 32}, crow, col).version(), 0x5bbbc74d4a57de7b);
  EXPECT_EQ(BlockIndex(BlockPattern(0, 0, {8, 8})).version(), 0x1e321b7ae3544b47);
}

TEST(PatternVersion, TellsNearlyEqualPatternsApart) {
  std::set<std::int64_t> versions;
  std::size_t patterns = 0;
  const auto add = [&](const BlockPattern& pattern) {
    versions.insert(BlockIndex(pattern).version());
    ++patterns;
  };
  for (std::int64_t rows = 57; rows <= 64; ++rows) {  // one grid, eight matrices
    for (std::int64_t cols = 57; cols <= 64; ++cols) {
      add(BlockPattern(rows, cols, {8, 8}));
      add(pattern::full(rows, cols, {8, 8}));
    }
  }
  for (std::int64_t r = 0; r < 32; ++r) {
    for (std::int64_t c = 0; c < 32; ++c) {
      BlockPattern one(256, 256, {8, 8});
      one.set(r, c);
      add(one);
      add(~one);
    }
  }
  EXPECT_EQ(versions.size(), patterns);
}

}  // namespace
}  // namespace sparseloom
