// sm80_dw_small alone: what its cuts and its search for block rows could get wrong. The suites that run every
// kernel have the rest.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/bsr_linear/cuda/rows.h"
#include "kernels/bsr_linear/sm80/dw_small/cut.h"
#include "kernels/cuda/device_call.h"

namespace sparseloom::testing {
namespace {

namespace dw_small = kernels::cuda::dw_small;

constexpr std::int32_t kSides[] = {8, 16, 32, 64, 128};

// Every tile has work for its warps, fits the shared memory and divides its blocks or is divided by them.
TEST(DwSmallCut, TilesHoldWholePartsOrWholeBlocks) {
  for (const std::int32_t bm : kSides)
    for (const std::int32_t bn : kSides)
      for (const std::int64_t m : {0, 1, 16, 17, 128, 256})
        for (const std::int64_t blocks : {1, 31, 700, 100000}) {
          const BlockShape block{bm, bn};
          const dw_small::Tile tile = dw_small::choose_tile(block, blocks, m, 132);
          SCOPED_TRACE(::testing::Message() << to_string(block) << " m=" << m << " blocks " << blocks << ": "
                                            << tile.rows << " x " << tile.columns);
          EXPECT_TRUE(tile.rows >= 8 && bm % tile.rows == 0);
          EXPECT_TRUE(tile.columns >= 32 && (tile.columns % bn == 0 || bn % tile.columns == 0));
          EXPECT_LE(dw_small::shared_bytes(tile, block, m), dw_small::kSharedBytes);
          EXPECT_LE(dw_small::blocks_of(tile, block), dw_small::kMostBlocks);
          EXPECT_LE(dw_small::blocks_of(tile, block) * tile.rows, dw_small::kMostColumns);
          EXPECT_LE(tile.columns, dw_small::kMostColumns);
          EXPECT_GE(dw_small::thread_blocks(tile, block, blocks) * dw_small::blocks_of(tile, block), blocks);
        }
}

class CudaDwSmall : public OnDevice {
 protected:
  // Against fp64 per tile, or exactly if the operands are small integers.
  static void check(const Case& c) {
    Instance instance(c);
    const auto rows = runnable_on_device(instance.cuda_problem(0));
    const auto row = std::find_if(rows.begin(), rows.end(), [](const kernels::Kernel* kernel) {
      return std::string(kernel->name) == "sm80_dw_small";
    });
    ASSERT_NE(row, rows.end()) << describe(c);
    const Matrix out = run_on_device(instance, **row);
    const Instance::Answer answer = instance.answer();
    c.integers ? expect_exact(instance, out, answer) : expect_accurate(instance, out, answer);
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
