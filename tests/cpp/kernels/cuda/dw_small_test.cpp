// sm80_dw_small alone: what its cuts and its search for block rows could get wrong. The suites that run every
// kernel have the rest.
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "kernels/bsr_linear/cuda/rows.h"
#include "kernels/bsr_linear/sm80/dw_small/entry.h"
#include "kernels/cuda/device_call.h"

namespace sparseloom::testing {
namespace {

namespace dw_small = kernels::cuda::dw_small;

constexpr std::int32_t kSides[] = {8, 16, 32, 64, 128};
constexpr int kClusters[] = {1, 2, 4, 8};

// Every tile has work for its warps, fits the shared memory and divides its blocks or is divided by them.
TEST(DwSmallCut, TilesHoldWholePartsOrWholeBlocks) {
  for (const std::int32_t bm : kSides)
    for (const std::int32_t bn : kSides)
      for (const std::int64_t m : {0, 1, 16, 17, 128, 256, 512, 1000, 4096})
        for (const std::int64_t blocks : {1, 31, 700, 100000})
          for (const int cluster : kClusters) {
            if (m > cluster * dw_small::kMostSlice) continue;
            const BlockShape block{bm, bn};
            const dw_small::Tile tile = dw_small::choose_tile(block, blocks, m, cluster, 132);
            SCOPED_TRACE(::testing::Message()
                         << to_string(block) << " m=" << m << " blocks " << blocks << " cluster " << cluster
                         << ": " << tile.rows << " x " << tile.columns);
            EXPECT_TRUE(tile.rows >= 8 && bm % tile.rows == 0);
            EXPECT_TRUE(tile.columns >= 32 && (tile.columns % bn == 0 || bn % tile.columns == 0));
            EXPECT_LE(dw_small::shared_bytes(tile, block, m, cluster), dw_small::kSharedBytes);
            EXPECT_LE(dw_small::blocks_of(tile, block), dw_small::kMostBlocks);
            EXPECT_LE(dw_small::blocks_of(tile, block) * tile.rows, dw_small::kMostColumns);
            EXPECT_LE(tile.columns, dw_small::kMostColumns);
            EXPECT_GE(dw_small::thread_blocks(tile, block, blocks) * dw_small::blocks_of(tile, block),
                      blocks);
            EXPECT_GE(cluster * dw_small::slice_of(m, cluster), m);
            if (cluster == 1) continue;
            EXPECT_LE(dw_small::cells_of(tile), dw_small::kWarps);
            EXPECT_EQ(dw_small::kWarps % dw_small::cells_of(tile), 0);
          }
}

/// What the row would propose if there were clusters of this size only.
template <int kCluster>
Refusal in_clusters(const Problem& p, const plan::Machine& machine, Proposals<bsr_linear::Linear>& out) {
  const dw_small::Tile tile =
      dw_small::choose_tile(p.block, p.blocks, p.m, kCluster, machine.cuda.multiprocessors);
  Schedule schedule;
  schedule.tile_m = tile.rows, schedule.tile_n = tile.columns, schedule.cluster = kCluster;
  out.add({schedule, 1.0, 0});
  return {};
}

class CudaDwSmall : public OnDevice {
 protected:
  // Against fp64 per tile, or exactly if the operands are small integers.
  static void check(const Case& c) {
    Instance instance(c);
    const kernels::Kernel* const row = kernel_on_device(instance, "sm80_dw_small");
    ASSERT_NE(row, nullptr) << describe(c);
    const Instance::Answer answer = instance.answer();
    const auto run = [&](const kernels::Kernel& kernel) {
      const Matrix out = run_on_device(instance, kernel);
      c.integers ? expect_exact(instance, out, answer) : expect_accurate(instance, out, answer);
    };
    run(*row);
    if (runtime::cuda_device(0).sm != 90) return;
    kernels::Kernel forced = *row;
    const std::pair<int, decltype(forced.propose)> sizes[] = {
        {2, in_clusters<2>}, {4, in_clusters<4>}, {8, in_clusters<8>}};
    for (const auto& [cluster, propose] : sizes) {
      if (c.m > cluster * dw_small::kMostSlice) continue;
      SCOPED_TRACE(::testing::Message() << "clusters of " << cluster);
      forced.propose = propose;
      run(forced);
    }
  }
};

TEST_P(CudaDwSmall, EveryBlockShapeAndNumberOfTokens) {
  for (const std::int32_t bm : kSides)
    for (const std::int32_t bn : kSides)
      for (const std::int64_t m : {0, 1, 15, 16, 17, 128, 256}) {
        Case c = base();
        c.m = m, c.block = {bm, bn}, c.rows = 3 * bm, c.cols = 5 * bn, c.density = 0.5, c.integers = true;
        check(c);
        c.rows -= 3, c.cols -= 5, c.integers = false, c.stride_padding = m % 2 ? 3 : 8, c.seed = 2;
        c.values_shift = m == 17;
        check(c);
      }
}

// Tokens that only clusters hold, and slices of which the last ones are short or have none.
TEST_P(CudaDwSmall, ManyTokens) {
  for (const BlockShape block : {BlockShape{8, 8}, {16, 64}, {32, 32}, {64, 8}, {128, 128}})
    for (const std::int64_t m : {257, 512, 513, 1100, 4096}) {
      Case c = base();
      c.m = m, c.block = block, c.rows = 3 * block.rows - 5, c.cols = 4 * block.cols - 3, c.density = 0.5;
      c.stride_padding = m % 2 ? 3 : 8;
      check(c);
      c.integers = true, c.stride_padding = 0, c.rows += 5, c.cols += 3;
      check(c);
    }
}

TEST_P(CudaDwSmall, SameBitsInClusters) {
  Case c = base();
  if (c.accumulate) return;  // each run adds to what the one before it left
  c.m = 700, c.block = {64, 64}, c.rows = 512, c.cols = 512, c.density = 0.2;
  Instance instance(c);
  const kernels::Kernel* const row = kernel_on_device(instance, "sm80_dw_small");
  if (runtime::cuda_device(0).sm != 90) {
    EXPECT_EQ(row, nullptr);
    return;
  }
  ASSERT_NE(row, nullptr);
  expect_same_bits(instance, *row, 20);
}

// Block rows far from where they were equally long, many of them empty: one tile spans over a hundred.
TEST_P(CudaDwSmall, UnevenAndEmptyBlockRows) {
  for (const BlockShape block : {BlockShape{8, 8}, {16, 16}, {8, 32}, {16, 8}, {32, 32}}) {
    Case c = base();
    c.m = 20, c.block = block, c.integers = true;
    c.rows = 3000 * std::int64_t{block.rows}, c.cols = 2 * block.cols, c.density = 0.01;
    check(c);
    c.rows = 40 * block.rows, c.cols = 300 * block.cols, c.density = 0.5, c.skewed = true;
    check(c);
    c.rows = 500 * block.rows, c.cols = 20 * block.cols, c.density = 0.9;
    check(c);
  }
}

// So many blocks that tiles have their full size.
TEST_P(CudaDwSmall, ManyBlocks) {
  for (const BlockShape block : {BlockShape{8, 8}, {16, 16}, {32, 32}, {64, 64}, {128, 128}})
    for (const std::int64_t m : {3, 40}) {
      Case c = base();
      c.m = m, c.block = block, c.rows = 2560, c.cols = block.rows > 32 ? 5120 : 1280, c.density = 0.6;
      check(c);
    }
}

std::vector<Product> sixteen_bits() {
  std::vector<Product> list = products_and_sums();
  std::erase_if(list, [](const Product& p) { return p.direction != Direction::dw || p.dtype == DType::f32; });
  return list;
}
INSTANTIATE_TEST_SUITE_P(, CudaDwSmall, ::testing::ValuesIn(sixteen_bits()), name_of);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaDwSmall);

}  // namespace
}  // namespace sparseloom::testing
