// Topologies of any number of blocks up to a capacity on the CPU, against an index built anew and a sort.
#include "layout/moving_topology.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <tuple>
#include <vector>

#include "core/expect_error.h"
#include "core/rng.h"
#include "sparseloom/sparseloom.h"

namespace sparseloom::testing {
namespace {

using test::expect_error;

struct Grid {
  int rows, cols;
};
constexpr Grid kGrids[] = {{1, 1}, {1, 40}, {40, 1}, {7, 5}, {32, 32}, {33, 65}};

TEST(UpdateTopology, EqualsAnIndexBuiltAnew) {
  core::Rng rng(1);
  for (const Grid grid : kGrids) {
    std::vector<std::uint8_t> mask = random_mask(rng, grid.rows, grid.cols, 0.4);
    Tables tables = tables_with_room(grid.rows, grid.cols, mask, mask.size());
    for (const double density : {0.4, 0.9, 0.1, 0.0, 0.5, 1.0}) {
      mask = random_mask(rng, grid.rows, grid.cols, density);
      const Tables before = stored_part(tables);
      std::int32_t flags = 0;
      update_topology(mask.data(), tables.view(), &flags, {}, Executor::serial());
      const Tables now = stored_part(tables);
      now.expect_index_of(mask);
      now.expect_moved_from(before, mask);
      for (std::size_t slot = now.moved.size(); slot < tables.moved.size(); ++slot)
        EXPECT_EQ(tables.moved[slot], slot < before.col.size() ? -1 : kSlotStaysFree);
      EXPECT_EQ(flags, 0);
      EXPECT_EQ(tables.requested[0], now.crow.back());
    }
  }
}

TEST(UpdateTopology, KeepsEverythingWhenTheMaskHasNoRoom) {
  Tables tables = tables_with_room(3, 4, {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0}, 3);
  const Tables before = tables;
  std::int32_t flags = kTopologyNaN;
  const std::vector<std::uint8_t> mask{0, 1, 0, 0, 0, 7, 1, 1, 0, 0, 0, 0};
  update_topology(mask.data(), tables.view(), &flags, {}, Executor::serial());
  EXPECT_EQ(flags, kTopologyNaN | kTopologyOverflow);
  EXPECT_EQ(tables.requested[0], 4);
  EXPECT_EQ(tables.moved, (std::vector<std::int32_t>{0, 1, 2}));
  EXPECT_EQ(tables.crow, before.crow);
  EXPECT_EQ(tables.col, before.col);
  EXPECT_EQ(tables.slot, before.slot);
}

TEST(ChooseBlocks, TakesTheBestAndOfEqualOnesTheFirst) {
  core::Rng rng(2);
  for (const Grid grid : kGrids)
    for (const double share : {0.0, 0.3, 1.0})
      for (const double part : {0.0, 0.2, 0.7}) {
        std::vector<std::uint8_t> mask = random_mask(rng, grid.rows, grid.cols, 0.4);
        const Tables tables = tables_with_room(grid.rows, grid.cols, mask, mask.size());
        const Choice choice =
            random_choice(rng, tables, std::floor(part * static_cast<double>(mask.size())), share);
        std::int32_t flags = 0;
        choose_blocks(choice.view(tables, tables.crow.data(), tables.col.data()), mask.data(), &flags,
                      Executor::serial());
        EXPECT_EQ(flags, 0);
        EXPECT_EQ(mask, chosen_by_sorting(tables, choice));
      }
}

TEST(ChooseBlocks, KeepsTheStoredBlocksWhereItCannotChoose) {
  core::Rng rng(3);
  const std::vector<std::uint8_t> stored = random_mask(rng, 7, 9, 0.5);
  const Tables tables = tables_with_room(7, 9, stored, 50);
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  for (const auto& [score, growth, expected] : {std::tuple{nan, 1.0f, kTopologyNaN},
                                                {1.0f, nan, kTopologyNoGradient},
                                                {1.0f, inf, kTopologyNoGradient}}) {
    Choice choice = random_choice(rng, tables, 20, 0.3);
    choice.scores[4] = score;
    choice.growth[60] = growth;
    choice.scores.back() = nan;  // of a free slot
    std::vector<std::uint8_t> mask(stored.size(), 9);
    std::int32_t flags = 0;
    choose_blocks(choice.view(tables, tables.crow.data(), tables.col.data()), mask.data(), &flags,
                  Executor::serial());
    EXPECT_EQ(flags, expected);
    EXPECT_EQ(mask, stored);
  }
}

TEST(ChooseBlocks, TakesAnyBudget) {
  core::Rng rng(4);
  const Tables tables = tables_with_room(5, 6, random_mask(rng, 5, 6, 0.5), 30);
  const float inf = std::numeric_limits<float>::infinity();
  for (const double count : {-3.0, 1e300, static_cast<double>(std::numeric_limits<float>::quiet_NaN())})
    for (const double share : {-1.0, 7.0, static_cast<double>(inf)}) {
      Choice choice = random_choice(rng, tables, count, share);
      for (float& growth : choice.growth) growth = 1;
      std::vector<std::uint8_t> mask(30);
      std::int32_t flags = 0;
      choose_blocks(choice.view(tables, tables.crow.data(), tables.col.data()), mask.data(), &flags,
                    Executor::serial());
      EXPECT_EQ(mask, std::vector<std::uint8_t>(30, count > 0 ? 1 : 0));
    }
}

TEST(MoveBlocks, LeavesSlotsThatStayFree) {
  std::vector<float> values{1, 2, 3, 4, 5, 6};
  std::vector<std::byte> workspace(24 + 16);
  auto* const at =
      reinterpret_cast<std::byte*>((reinterpret_cast<std::uintptr_t>(workspace.data()) + 15) / 16 * 16);
  const std::vector<std::int32_t> moved{2, 1, 0, -1, kSlotStaysFree, 9};
  move_blocks(values.data(), 4, moved, {at, 24}, Executor::serial());
  EXPECT_EQ(values, (std::vector<float>{3, 2, 1, 0, 5, 0}));
}

TEST(ClearFreeBlocks, LeavesStoredBlocksAlone) {
  std::vector<std::uint8_t> blocks(5 * 12, 7);
  std::int32_t end = 3;
  clear_free_blocks(blocks.data(), 12, &end, 5, Executor::serial());
  for (std::size_t i = 0; i < blocks.size(); ++i) EXPECT_EQ(blocks[i], i < 36 ? 7 : 0);
  end = 9;  // nothing is free
  clear_free_blocks(blocks.data(), 12, &end, 5, Executor::serial());
  EXPECT_EQ(blocks[0], 7);
}

TEST(MovingTopology, RefusesWhatDoesNotFit) {
  Tables tables(2, 2, {1, 0, 0, 1});
  std::int32_t flags = 0;
  TopologyTables wrong = tables.view();
  wrong.capacity = 5;
  const std::vector<std::uint8_t> mask(4);
  expect_error("set_topology", {"4", "5"},
               [&] { update_topology(mask.data(), wrong, &flags, {}, Executor::serial()); });
  expect_error("update_topology", {"flags"},
               [&] { update_topology(mask.data(), tables.view(), nullptr, {}, Executor::serial()); });
  std::vector<std::uint8_t> to(4);
  expect_error("choose_blocks", {"2^28"}, [&] {
    choose_blocks({1 << 20, 1 << 20, 1}, to.data(), &flags, Executor::serial());
  });
  expect_error("choose_blocks", {"cuda:63"}, [&] {
    choose_blocks({2, 2, 1}, to.data(), &flags, Executor::cuda(63));
  });
}

}  // namespace
}  // namespace sparseloom::testing
