#include "plan/block_row_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "plan/known_indices.h"
#include "sparseloom/layout.h"
#include "sparseloom/pattern.h"

namespace sparseloom::plan {
namespace {

struct Lists {
  std::vector<std::int32_t> begin{0}, along;
  std::int64_t extent;

  explicit Lists(std::int64_t extent_) : extent(extent_) {}
  void add(std::vector<std::int32_t> block_row) {
    std::sort(block_row.begin(), block_row.end());
    along.insert(along.end(), block_row.begin(), block_row.end());
    begin.push_back(static_cast<std::int32_t>(along.size()));
  }
  BlockRows view() const { return {begin, along, extent}; }
};

Lists random_lists(int count, std::int32_t extent, int each, unsigned seed) {
  Lists lists(extent);
  std::mt19937 random(seed);
  std::vector<std::int32_t> places(static_cast<std::size_t>(extent));
  std::iota(places.begin(), places.end(), 0);
  for (int i = 0; i < count; ++i) {
    std::shuffle(places.begin(), places.end(), random);
    lists.add({places.begin(), places.begin() + each});
  }
  return lists;
}

void expect_permutation(std::vector<std::uint16_t> order, std::size_t count) {
  ASSERT_EQ(order.size(), count);
  std::sort(order.begin(), order.end());
  for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(order[i], i);
}

TEST(BlockRowOrder, BringsBlockRowsOfTheSameUnitsTogether) {
  Lists lists(256);
  for (int i = 0; i < 32; ++i)
    lists.add({i % 8 * 16, i % 8 * 16 + 5, 200 + i % 8});  // eight kinds, four block rows each
  const auto order = block_row_order(lists.view(), {4, 1});
  expect_permutation(order, 32);
  for (std::size_t i = 0; i < 32; ++i) EXPECT_EQ(order[i] % 8, order[i / 4 * 4] % 8) << i;
  EXPECT_EQ(units_read(lists.view(), {4, 1}, {}), 32 * 3);
  EXPECT_EQ(units_read(lists.view(), {4, 1}, order), 8 * 3);
}

TEST(BlockRowOrder, SavesUnitsOfRandomPatterns) {
  for (const auto& [block_rows, span] : {std::pair{2, 1}, {4, 1}, {4, 2}})
    for (const int each : {6, 13, 26}) {
      const Lists lists = random_lists(126, 128, each, 3);  // the last group is smaller
      const auto order = block_row_order(lists.view(), {block_rows, span});
      expect_permutation(order, 126);
      const auto before = static_cast<double>(units_read(lists.view(), {block_rows, span}, {}));
      EXPECT_LT(static_cast<double>(units_read(lists.view(), {block_rows, span}, order)), 0.93 * before)
          << block_rows << ", " << each;
    }
}

// The longest block row beside the shortest adds the fewest units to it, and leaves the most to the others.
TEST(BlockRowOrder, BringsLongBlockRowsTogether) {
  Lists lists(64);
  for (const int each : {40, 4, 40, 4, 40, 4, 40, 4}) {
    std::vector<std::int32_t> block_row(static_cast<std::size_t>(each));
    std::iota(block_row.begin(), block_row.end(), each == 4 ? 7 * static_cast<int>(lists.begin.size()) : 0);
    lists.add(block_row);
  }
  const auto order = block_row_order(lists.view(), {2, 1});
  expect_permutation(order, 8);
  for (std::size_t i = 0; i < 8; i += 2) EXPECT_EQ(order[i] % 2, order[i + 1] % 2) << i;
  EXPECT_EQ(units_read(lists.view(), {2, 1}, order), 2 * 40 + 2 * 8);
}

// Taken one after the other, the first block row takes the second, which the third needs more.
TEST(BlockRowOrder, ExchangesBlockRowsOfPairs) {
  Lists lists(64);
  lists.add({0, 1, 2, 3, 4, 5});
  lists.add({0, 1, 2, 10, 11, 12});
  lists.add({10, 11, 12, 20, 21, 22});
  lists.add({3, 4, 30, 31, 32, 33});
  const auto order = block_row_order(lists.view(), {2, 1});
  EXPECT_EQ(units_read(lists.view(), {2, 1}, order), 10 + 9);  // not 9 + 12
}

// Units of two blocks: block rows that store different halves of the same ones.
TEST(BlockRowOrder, CountsUnitsAndNotBlocks) {
  Lists lists(64);
  for (int i = 0; i < 4; ++i) lists.add({i % 2 * 20 + i / 2, i % 2 * 20 + 4 + i / 2});
  EXPECT_EQ(block_row_order(lists.view(), {2, 2}), (std::vector<std::uint16_t>{0, 2, 1, 3}));
}

// Block rows in pairs that stay together: four of them, of which the first and the last read the same.
TEST(BlockRowOrder, FoldsBlockRows) {
  Lists lists(32);
  for (const std::int32_t place : {0, 9, 20, 21, 26, 27, 9, 0}) lists.add({place});
  EXPECT_EQ(block_row_order(lists.view(), {2, 1, 1, 2}), (std::vector<std::uint16_t>{1, 2, 0, 3}));
  EXPECT_EQ(units_read(lists.view(), {2, 1, 1, 2}, {}), 8);
  EXPECT_EQ(units_read(lists.view(), {2, 1, 1, 2}, std::vector<std::uint16_t>{1, 2, 0, 3}), 6);
}

TEST(BlockRowOrder, CostliestGroupsFirstAndASmallerOneLast) {
  Lists lists(64);
  for (const int each : {1, 9, 30, 5, 12}) {
    std::vector<std::int32_t> block_row(static_cast<std::size_t>(each));
    std::iota(block_row.begin(), block_row.end(), 0);
    lists.add(block_row);
  }
  EXPECT_EQ(block_row_order(lists.view(), {1, 1}), (std::vector<std::uint16_t>{2, 4, 1, 3, 0}));
  EXPECT_EQ(block_row_order(lists.view(), {2, 1}),
            (std::vector<std::uint16_t>{2, 4, 1, 3, 0}));  // 30 and 9 units; 1 alone
}

// A few block rows of many units and many of few: every step-th group adds up to the same. One share has the
// costliest first; of several, every other group of each is no cheaper than its neighbours.
TEST(BlockRowOrder, DealsGroupsOut) {
  Lists lists(64);
  for (int i = 0; i < 30; ++i) {
    std::vector<std::int32_t> block_row(static_cast<std::size_t>(std::max(2, 60 >> i % 15)));
    std::iota(block_row.begin(), block_row.end(), i % 4);
    lists.add(block_row);
  }
  for (const auto& [step, most] : {std::pair{1, 0}, {2, 2}, {4, 30}, {7, 50}}) {
    const auto order = block_row_order(lists.view(), {1, 1, step});
    expect_permutation(order, 30);
    std::vector<int> sums(static_cast<std::size_t>(step));
    for (std::size_t i = 0; i < 30; ++i) {
      const int units = lists.begin[order[i] + 1u] - lists.begin[order[i]];
      sums[i % static_cast<std::size_t>(step)] += units;
      if (i >= static_cast<std::size_t>(step)) {
        const auto before = order[i - static_cast<std::size_t>(step)];
        const int rise = units - (lists.begin[before + 1u] - lists.begin[before]);
        EXPECT_LE(step == 1 || i / static_cast<std::size_t>(step) % 2 != 0 ? rise : -rise, 0)
            << step << ", " << i;
      }
    }
    const auto [least, largest] = std::minmax_element(sums.begin(), sums.end());
    EXPECT_LE(*largest - *least, most) << step;
  }
}

// Whichever group a thread block begins with, it is never far ahead of or behind another.
TEST(BlockRowOrder, KeepsThoseInStepWhoBeginElsewhere) {
  Lists lists(256);
  std::mt19937 random(7);
  for (int i = 0; i < 32; ++i) {
    std::vector<std::int32_t> block_row(20 + random() % 41);
    std::iota(block_row.begin(), block_row.end(), 0);
    lists.add(block_row);
  }
  const std::size_t step = 4, share = 8;
  const auto order = block_row_order(lists.view(), {1, 1, static_cast<int>(step)});
  expect_permutation(order, 32);
  const double mean = static_cast<double>(lists.along.size()) / 32;
  double most = 0;
  for (std::size_t first = 0; first < step; ++first)
    for (std::size_t begin = 0; begin < share; ++begin) {
      double ahead = 0;
      for (std::size_t i = 0; i < share; ++i) {
        const auto block_row = order[first + (begin + i) % share * step];
        ahead += lists.begin[block_row + 1u] - lists.begin[block_row] - mean;
        most = std::max(most, std::abs(ahead));
      }
    }
  EXPECT_LT(most, 30);  // the costliest group alone is 20 ahead; with the costliest first it was 44
}

TEST(BlockRowOrder, IsEmptyWhereNothingIsToBeOrdered) {
  EXPECT_TRUE(block_row_order(random_lists(1, 64, 5, 1).view(), {4, 1}).empty());
  EXPECT_TRUE(block_row_order(random_lists(16, 64, 5, 1).view(), {0, 1}).empty());
  EXPECT_TRUE(block_row_order(Lists(64).view(), {4, 1}).empty());
  EXPECT_TRUE(
      block_row_order(random_lists(static_cast<int>(kMostOrderedBlockRows) + 1, 64, 5, 1).view(), {4, 1})
          .empty());
  EXPECT_EQ(
      block_row_order(random_lists(static_cast<int>(kMostOrderedBlockRows), 64, 5, 1).view(), {4, 1}).size(),
      kMostOrderedBlockRows);
  Lists same(64);
  for (int i = 0; i < 8; ++i) same.add({1, 2, 3});
  EXPECT_TRUE(block_row_order(same.view(), {4, 1}).empty());  // as they lie
}

// Where an index lies on device 0, as far as the table can tell.
KnownIndices::Place place_of(const BlockIndex& index) { return {0, index.view().crow}; }

std::vector<std::uint16_t> order_of(KnownIndices& known, const BlockIndex& index, Direction direction,
                                    BlockRowGroups groups = {4, 1}) {
  const auto hints = known.hints(place_of(index), index.view(), direction, groups);
  return hints == nullptr ? std::vector<std::uint16_t>{} : hints->order;
}

TEST(KnownIndices, OrdersRowsAndColumnsOfWhatTheyRemember) {
  const BlockIndex index(pattern::balanced(1024, 512, {32, 32}, 0.2, 5));
  KnownIndices known;
  EXPECT_EQ(known.hints(place_of(index), index.view(), Direction::forward, {4, 1}), nullptr);
  known.remember(place_of(index), index.view());
  known.remember(place_of(index), index.view());
  EXPECT_EQ(known.size(), 1u);
  const IndexView view = index.view();
  const auto n = static_cast<std::size_t>(view.blocks);
  const BlockRows rows{{view.crow, 33}, {view.col, n}, 16},
      columns{{index.transposed().ccol, 17}, {index.transposed().row, n}, 32};
  EXPECT_EQ(order_of(known, index, Direction::forward), block_row_order(rows, {4, 1}));
  EXPECT_EQ(order_of(known, index, Direction::dx), block_row_order(columns, {4, 1}));
  EXPECT_EQ(order_of(known, index, Direction::dx, {2, 1}), block_row_order(columns, {2, 1}));
  EXPECT_EQ(known.hints({1, view.crow}, view, Direction::forward, {4, 1}), nullptr);
}

TEST(KnownIndices, TellUnevenBlockRowsAndColumns) {
  // Columns of 2 and 0 blocks where the mean is 1.
  const BlockIndex index(128, 128, {32, 32}, std::vector<std::int32_t>{0, 1, 2, 3, 4},
                         std::vector<std::int32_t>{0, 0, 1, 1});
  KnownIndices known;
  known.remember(place_of(index), index.view());
  const auto rows = known.hints(place_of(index), index.view(), Direction::forward, {0}),
             columns = known.hints(place_of(index), index.view(), Direction::dx, {0});
  EXPECT_FALSE(rows->uneven);
  EXPECT_TRUE(columns->uneven);
  EXPECT_FALSE(columns->uneven_groups);  // all of them are one group
  EXPECT_TRUE(columns->order.empty());
}

// Memory that was freed and taken again: by an index of another shape, then by one that was announced.
TEST(KnownIndices, GiveTheOrderOfWhatLiesThereNow) {
  const BlockIndex index(pattern::balanced(1024, 512, {32, 32}, 0.2, 5)),
      shorter(pattern::balanced(512, 512, {32, 32}, 0.2, 5)),
      same_shape(pattern::balanced(1024, 512, {32, 32}, 0.2, 6));
  KnownIndices known;
  known.remember(place_of(index), index.view());
  const auto order = order_of(known, index, Direction::forward);
  EXPECT_FALSE(order.empty());
  for (const Direction direction : {Direction::forward, Direction::dx})
    EXPECT_EQ(known.hints(place_of(index), shorter.view(), direction, {4, 1}), nullptr);
  known.remember(place_of(index), same_shape.view());
  EXPECT_EQ(known.size(), 1u);
  const auto after = order_of(known, index, Direction::forward);
  EXPECT_FALSE(after.empty());
  EXPECT_NE(after, order);
}

TEST(KnownIndices, GiveSomeOfTheBlocksTheOrderOfAll) {
  const BlockIndex all(pattern::balanced(1024, 512, {32, 32}, 0.2, 5)),
      some(pattern::balanced(1024, 512, {32, 32}, 0.2, 6));
  KnownIndices known;
  known.remember(place_of(all), all.view());
  known.share(place_of(all), place_of(some));
  EXPECT_EQ(order_of(known, some, Direction::forward), order_of(known, all, Direction::forward));
  known.remember(place_of(some), some.view());  // the memory has an index of its own now
  EXPECT_NE(order_of(known, some, Direction::forward), order_of(known, all, Direction::forward));
}

TEST(KnownIndices, ForgetTheOldest) {
  const BlockIndex first(pattern::balanced(512, 512, {32, 32}, 0.2, 1)),
      second(pattern::balanced(512, 512, {32, 32}, 0.2, 2)),
      third(pattern::balanced(512, 512, {32, 32}, 0.2, 3)),
      large(pattern::balanced(4096, 4096, {32, 32}, 0.5, 1));
  const std::size_t each = (17 + static_cast<std::size_t>(first.view().blocks)) * sizeof(std::int32_t);
  KnownIndices known(2 * each);
  for (const BlockIndex* index : {&first, &second, &large, &third})
    known.remember(place_of(*index), index->view());
  EXPECT_EQ(known.size(), 2u);
  EXPECT_TRUE(order_of(known, first, Direction::forward).empty());
  EXPECT_FALSE(order_of(known, second, Direction::forward).empty());
  EXPECT_FALSE(order_of(known, third, Direction::forward).empty());
}

}  // namespace
}  // namespace sparseloom::plan
