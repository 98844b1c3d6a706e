// Schedules as text: what a row chose is said, what it left to its kernel is not.
#include "sparseloom/schedule.h"

#include <gtest/gtest.h>

#include <type_traits>

#include "sparseloom/bsr_linear.h"
#include "sparseloom/verb.h"

namespace sparseloom {
namespace {

static_assert(std::is_trivially_copyable_v<Schedule> && sizeof(Schedule) <= kScheduleBytes);

TEST(Schedule, SaysWhatARowChose) {
  EXPECT_EQ(to_string(Schedule{}), "");
  Schedule s;
  s.method = Method::dw_wgmma_regions, s.tile_m = 224, s.tile_n = 256;
  EXPECT_EQ(to_string(s), "by dw_wgmma_regions, tile 224x256");
  s = {};
  s.tile_m = 256, s.tile_n = 64, s.tile_k = 32, s.tiles_in_turn = 4, s.stores_at_end = true;
  EXPECT_EQ(to_string(s), "tile 256x64x32, 4 tiles in turn, stores at the end of a tile");
  s = {};
  s.split_k = 3, s.cluster = 2;
  EXPECT_EQ(to_string(s), "clusters of 2, split-K 3");
  s = {};
  s.method = Method::decode_rows, s.tiles_at_once = 2, s.warps = 8, s.stages = 4, s.swap_ab = true;
  EXPECT_EQ(to_string(s), "by decode_rows, 2 tiles at once, 8 warps, 4 stages, swap-AB");
  s = {};
  s.stages = 4, s.slots = 18, s.grid = 132, s.chunk_n = 5;
  EXPECT_EQ(to_string(s), "4 stages of 18 blocks, a grid of 132, N tiles in chunks of 5");
  s = {};
  s.split_k = s.cluster = s.tiles_in_turn = s.tiles_at_once = 1;  // as good as nothing
  EXPECT_EQ(to_string(s), "");
}

TEST(Schedule, IsALineOfItsPlan) {
  Plan plan;
  plan.kernel = 0, plan.kernel_name = "it", plan.predicted_us = 2;
  plan.problem.facts.known = true;
  plan.schedule.tile_m = 256, plan.schedule.tile_n = 128, plan.schedule.groups = {4};
  EXPECT_EQ(plan.describe(),
            "plan: " + to_string(plan.problem) +
                "\n  runs it, predicted 2.0 us, workspace 0 bytes\n  tile 256x128\n  orders block "
                "rows: those that read the same K tiles together, costly ones first\n");
  plan.problem.facts.known = false;  // no order is made for a pattern that nobody looked at
  EXPECT_EQ(plan.describe().find("orders block"), std::string::npos);
}

}  // namespace
}  // namespace sparseloom
