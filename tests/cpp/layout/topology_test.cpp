// set_topology against an index built anew: masks of every density, too full and too empty ones, on any grid.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/rng.h"
#include "layout/topology_tables.h"

namespace sparseloom::testing {
namespace {

struct Grid {
  int rows, cols;
};
constexpr Grid kGrids[] = {{1, 1}, {1, 40}, {40, 1}, {7, 5}, {32, 32}, {33, 65}, {128, 128}};

TEST(SetTopology, EqualsAnIndexBuiltAnew) {
  core::Rng rng(1);
  for (const Grid grid : kGrids)
    for (const double density : {0.0, 0.05, 0.5, 0.95, 1.0}) {
      std::vector<std::uint8_t> mask = random_mask(rng, grid.rows, grid.cols, density);
      Tables tables(grid.rows, grid.cols, mask);
      for (int change = 0; change < 4; ++change) {
        shuffle(rng, mask);  // as many blocks, other ones
        const Tables before = tables;
        set_topology(mask.data(), tables.view());
        tables.expect_index_of(mask);
        tables.expect_moved_from(before, mask);
        EXPECT_EQ(tables.requested[0], std::count(mask.begin(), mask.end(), 1));
        if (::testing::Test::HasFailure())
          FAIL() << grid.rows << " x " << grid.cols << " density " << density;
      }
    }
}

TEST(SetTopology, TakesTheFirstOfTooManyBlocks) {
  Tables tables(3, 4, {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1});
  set_topology(std::vector<std::uint8_t>{0, 1, 0, 0, 0, 7, 1, 1, 0, 0, 0, 1}.data(), tables.view());
  tables.expect_index_of({0, 1, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0});
  EXPECT_EQ(tables.moved, (std::vector<std::int32_t>{-1, 1, -1}));
  EXPECT_EQ(tables.requested[0], 5);
}

TEST(SetTopology, FillsUpWithFirstOtherBlocksAsNewOnes) {
  Tables tables(3, 4, {1, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 1});
  set_topology(std::vector<std::uint8_t>{0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0}.data(), tables.view());
  tables.expect_index_of({1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0});
  // Block (0, 0) was there, but the mask drops it: what takes its place is new.
  EXPECT_EQ(tables.moved, (std::vector<std::int32_t>{-1, -1, 1, -1}));
  EXPECT_EQ(tables.requested[0], 1);
}

TEST(SetTopology, WritesValidTablesOverAnything) {
  core::Rng rng(2);
  const std::vector<std::uint8_t> mask = random_mask(rng, 9, 70, 0.3);
  Tables tables(9, 70, mask);
  for (auto* list : {&tables.crow, &tables.col, &tables.ccol, &tables.row, &tables.slot, &tables.moved})
    for (std::int32_t& entry : *list) entry = static_cast<std::int32_t>(rng.next());
  set_topology(mask.data(), tables.view());
  tables.expect_index_of(mask);
  for (const std::int32_t moved : tables.moved)
    EXPECT_TRUE(moved >= -1 && moved < static_cast<std::int32_t>(tables.col.size()));
}

}  // namespace
}  // namespace sparseloom::testing
