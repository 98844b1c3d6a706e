// How sm90_wgmma walks over its tiles: host side, from sizes alone.
#include <gtest/gtest.h>

#include <cstdint>

#include "kernels/bsr_linear/sm90/wgmma/forward/entry.h"

namespace sparseloom::kernels::cuda::wgmma::forward {
namespace {

constexpr std::int64_t kL2 = 60 << 20, kMega = 1 << 20;

TEST(ForwardWalk, OneChunkWhereL2HoldsTheValues) {
  EXPECT_EQ(chunk_of(32, 128, 132, {30 * kMega, 64 * kMega, kL2}), 128u);
  EXPECT_EQ(chunk_of(32, 1, 132, {300 * kMega, 64 * kMega, kL2}), 1u);
}

// 8192 x 4096 x 16384 forward at .5: values of 64 MB would be read in each of 32 rounds, x of 64 MB is four
// times.
TEST(ForwardWalk, ChunksWhereReadingTheDenseOperandAnewIsLess) {
  EXPECT_EQ(chunk_of(32, 128, 132, {64 * kMega, 64 * kMega, kL2}), 32u);
  EXPECT_EQ(chunk_of(32, 128, 132, {640 * kMega, 64 * kMega, kL2}), 4u);
}

// Its dx: eight rounds, and dy of 256 MB.
TEST(ForwardWalk, OneChunkWhereItIsMore) {
  EXPECT_EQ(chunk_of(32, 32, 132, {64 * kMega, 256 * kMega, kL2}), 32u);
  EXPECT_EQ(chunk_of(4, 32, 132, {640 * kMega, 8 * kMega, kL2}),
            32u);  // a single round: nothing is read twice
}

TEST(ForwardWalk, AnL2OfUnknownSizeIsTakenForASmallOne) {
  EXPECT_EQ(chunk_of(32, 128, 132, {8 * kMega, 4 * kMega, 0}), 128u);
  EXPECT_EQ(chunk_of(32, 128, 132, {9 * kMega, 4 * kMega, 0}), 64u);
}

TEST(ForwardWalk, ThreadBlocksMeetEveryStepthGroup) {
  for (const auto& [panels, groups] : {std::pair{32u, 32u}, {32u, 128u}, {197u, 6u}, {8u, 64u}, {1u, 7u}}) {
    const Walk walk = walk_over(panels, groups, 132);
    EXPECT_LE(walk.grid, 132u);
    EXPECT_GT(walk.grid, 0u);
    if (walk.step == 1) continue;
    for (unsigned i = 0; i < walk.grid; ++i)
      for (unsigned tile = i; tile < panels * groups; tile += walk.grid)
        EXPECT_EQ((tile % groups + tile / groups * walk.stride) % groups % walk.step,
                  (i % groups + i / groups * walk.stride) % walk.step)
            << panels << " x " << groups << ", tile " << tile;
  }
  EXPECT_EQ(walk_over(32, 32, 132).step, 4u);
  EXPECT_EQ(walk_over(32, 128, 132).step, 4u);
}

}  // namespace
}  // namespace sparseloom::kernels::cuda::wgmma::forward
