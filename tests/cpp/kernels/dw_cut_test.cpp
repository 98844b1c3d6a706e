// How sm90_wgmma deals the items of dW to a grid: every step of every item once, parts in slots of their own
// and added in the order of the tokens, waited for only from thread blocks of lower index, and no thread
// block with much more to do than the others. The same functions run on the device.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/bsr_linear/sm90/wgmma/dw/cut.h"
#include "kernels/bsr_linear/sm90/wgmma/dw_regions/entry.h"

namespace sparseloom::kernels::cuda::wgmma::dw {
namespace {

struct Made {
  std::int32_t first, slot, block;
};

/// What all thread blocks do with one item, and the steps of the busiest thread block.
struct Dealt {
  std::vector<std::vector<char>> steps;
  std::vector<std::vector<Made>> parts;
  std::vector<std::int32_t> owner;
  std::vector<Slots> others;
  std::int32_t busiest = 0;
};

Dealt deal_out(std::int32_t items, std::int32_t grid, std::int32_t steps) {
  const auto count = static_cast<std::size_t>(items);
  Dealt dealt{std::vector<std::vector<char>>(count, std::vector<char>(static_cast<std::size_t>(steps), 0)),
              std::vector<std::vector<Made>>(count), std::vector<std::int32_t>(count, -1),
              std::vector<Slots>(count), 0};
  for (std::int32_t block = 0; block < grid; ++block) {
    Agenda agenda(cut_items(items, grid, steps), block, grid, steps);
    Part part;
    std::int32_t busy = 0;
    while (agenda.next(part)) {
      const auto item = static_cast<std::size_t>(part.item);
      EXPECT_GE(part.steps, 1);
      for (std::int32_t step = part.first; step < part.first + part.steps; ++step)
        ++dealt.steps.at(item).at(static_cast<std::size_t>(step));
      if (part.slot >= 0) {
        dealt.parts[item].push_back({part.first, part.slot, block});
      } else {
        EXPECT_EQ(dealt.owner[item], -1);
        dealt.owner[item] = block;
        dealt.others[item] = agenda.others(part);
      }
      busy += part.steps;
    }
    dealt.busiest = std::max(dealt.busiest, busy);
  }
  return dealt;
}

void check(std::int32_t items, std::int32_t grid, std::int32_t steps) {
  SCOPED_TRACE(testing::Message() << items << " items, grid " << grid << ", " << steps << " steps");
  Dealt dealt = deal_out(items, grid, steps);
  std::vector<char> taken(static_cast<std::size_t>(grid), 0);
  for (std::size_t item = 0; item < dealt.steps.size(); ++item) {
    ASSERT_TRUE(std::all_of(dealt.steps[item].begin(), dealt.steps[item].end(),
                            [](char times) { return times == 1; }));
    std::vector<Made>& parts = dealt.parts[item];
    std::sort(parts.begin(), parts.end(), [](const Made& a, const Made& b) { return a.first < b.first; });
    std::vector<std::int32_t> added;
    for (std::int32_t i = 0; i < dealt.others[item].pieces; ++i)
      added.push_back(dealt.others[item].pieces_first + i);
    for (std::int32_t i = 0; i < dealt.others[item].tails; ++i)
      added.push_back(dealt.others[item].tails_first + i);
    ASSERT_EQ(added.size(), parts.size());
    for (std::size_t i = 0; i < parts.size(); ++i) {
      ASSERT_EQ(parts[i].slot, added[i]);
      ASSERT_LT(parts[i].block, dealt.owner[item]) << "waits for a thread block that starts later";
      ASSERT_EQ(taken.at(static_cast<std::size_t>(parts[i].slot))++, 0) << "two parts in one slot";
    }
  }
}

TEST(DwCut, EveryStepOnceAndEverySlotOnce) {
  for (const std::int32_t grid : {1, 2, 3, 7, 60, 132}) {
    for (const std::int32_t steps : {1, 7, 8, 9, 31, 128, 789}) {
      for (std::int32_t items = 1; items <= 2 * grid + 3; items += grid > 7 ? 5 : 1)
        check(items, grid, steps);
    }
  }
}

TEST(DwCut, NoThreadBlockHasMuchMoreThanItsShare) {
  // 8192 tokens on an H200. The items of 4096 x 4096 at block 128 and density .1, .2, .5, .8 are among them.
  for (const std::int32_t items : {51, 64, 102, 109, 128, 205, 256, 416, 448}) {
    const double share = items * 128 / 132.0;
    EXPECT_LE(deal_out(items, 132, 128).busiest, 1.16 * share + 8) << items;
  }
}

TEST(DwCut, NothingIsCutWithoutRoomForIt) {
  for (const std::int64_t tokens : {1, 64, 448, 512, 8192}) {
    const Size size = size_of_product(kStep16, {128, 128}, 32, 205, tokens, 132);
    const Way way = choose_way(size, 32, 32);
    ASSERT_TRUE(way.exists());
    const Cut cut = cut_items(109, size.grid, size.steps);
    EXPECT_TRUE(workspace_bytes(size, way) > 0 || (cut.pieces == 1 && cut.tail == 0)) << tokens;
  }
}

TEST(DwWay, NarrowBlocksGoByRegionsWhereTheyFit) {
  const auto way = [](BlockShape block, std::int64_t side, double density) {
    const std::int64_t rows = side / block.rows, columns = side / block.cols;
    const auto blocks = static_cast<std::int64_t>(density * static_cast<double>(rows * columns));
    return choose_way(size_of_product(kStep16, block, rows, blocks, 8192, 132), rows, columns);
  };
  EXPECT_TRUE(way({16, 16}, 4096, 0.1).by_regions);
  EXPECT_TRUE(way({16, 32}, 4096, 0.1).by_regions);
  EXPECT_FALSE(way({32, 32}, 4096, 0.05).by_regions);  // few columns of X to read
  EXPECT_TRUE(way({32, 32}, 4096, 0.5).by_regions);
  EXPECT_FALSE(way({64, 64}, 4096, 0.3).by_regions);
  EXPECT_FALSE(way({16, 16}, 65536, 0.1).exists());
  EXPECT_FALSE(way({16, 64}, 4096, 0.1).exists());
  EXPECT_FALSE(way({8, 8}, 4096, 0.1).exists());
}

}  // namespace
}  // namespace sparseloom::kernels::cuda::wgmma::dw
