// The packed index: where its lists begin, what it holds, and that its size tells how many blocks it has.
#include "sparseloom/packed_index.h"

#include <gtest/gtest.h>

#include <set>
#include <span>
#include <vector>

namespace sparseloom {
namespace {

TEST(PackedIndex, ListsBeginAtMultiplesOfACacheLineAndDoNotOverlap) {
  for (std::int64_t rows : {0, 1, 15, 16, 33})
    for (std::int64_t blocks : {0, 1, 16, 17, 100}) {
      const IndexSegments s = index_segments(rows, 7, blocks);
      for (std::int64_t begin : {s.crow, s.col, s.ccol, s.row, s.slot}) EXPECT_EQ(begin % 16, 0);
      EXPECT_GE(s.col - s.crow, rows + 1);
      EXPECT_GE(s.ccol - s.col, blocks);
      EXPECT_GE(s.row - s.ccol, 8);
      EXPECT_GE(s.slot - s.row, blocks);
      EXPECT_EQ(s.size - s.slot, blocks);
    }
}

TEST(PackedIndex, ItsSizeTellsTheNumberOfBlocks) {
  std::set<std::int64_t> sizes;
  for (std::int64_t blocks = 0; blocks < 200; ++blocks) sizes.insert(index_segments(20, 10, blocks).size);
  EXPECT_EQ(sizes.size(), 200u);
}

TEST(PackedIndex, HoldsBothIndicesAndZerosBetween) {
  const std::vector<std::int32_t> crow{0, 2, 2, 5}, col{0, 3, 1, 2, 3};
  const BlockIndex expected(24, 30, {8, 8}, crow, col);
  const IndexSegments s = index_segments(3, 4, 5);
  std::vector<std::int32_t> packed(static_cast<std::size_t>(s.size), -1);
  pack_index(expected.view(), packed.data());
  IndexView index = expected.view();
  index.crow = packed.data();
  index.col = packed.data() + s.col;
  const TransposedView transposed = column_index(index), wanted = expected.transposed();
  const auto equal = [](const std::int32_t* a, const std::int32_t* b, std::size_t count) {
    return std::vector(a, a + count) == std::vector(b, b + count);
  };
  EXPECT_TRUE(equal(index.crow, crow.data(), 4) && equal(index.col, col.data(), 5));
  EXPECT_TRUE(equal(transposed.ccol, wanted.ccol, 5) && equal(transposed.row, wanted.row, 5) &&
              equal(transposed.slot, wanted.slot, 5));
  std::int64_t sum = 0, listed = 0;
  for (std::int32_t entry : packed) sum += entry;
  for (std::int32_t entry : crow) listed += entry;
  for (std::int32_t entry : col) listed += entry;
  for (int i = 0; i < 5; ++i) listed += wanted.ccol[i] + wanted.row[i] + wanted.slot[i];
  EXPECT_EQ(sum, listed);  // so every gap is zero
}

}  // namespace
}  // namespace sparseloom
