// Products of blocks of 8 to 64 that sm90_expanded expands: tiles cut at any K tile, block rows of any
// length, and slices that hold no block. CudaSmall*: for compute-sanitizer too.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "kernels/cuda/device_call.h"

namespace sparseloom::testing {
namespace {

constexpr const char* kName = "sm90_expanded";
constexpr BlockShape kBlocks[] = {{16, 16}, {32, 32}, {8, 8}, {64, 64}, {8, 32}, {64, 16}, {16, 8}};

std::vector<Product> of_16_bits() {
  std::vector<Product> list = products();
  std::erase_if(list, [](const Product& p) { return size_of(p.dtype) != 2 || p.direction == Direction::dw; });
  return list;
}

void check(const Case& c, Memory memory = Memory::guarded) {
  Instance instance(c);
  const kernels::Kernel* kernel = kernel_on_device(instance, kName);
  if (kernel == nullptr) GTEST_SKIP() << kName << " does not take " << describe(c);
  const Matrix out = run_on_device(instance, *kernel, memory);
  expect_accurate(instance, out, instance.answer());
}

class CudaSmallExpanded : public OnDevice {};

TEST_P(CudaSmallExpanded, RaggedEdgesAndTokens) {
  for (const BlockShape block : kBlocks)
    for (const std::int64_t m : {1, 64, 65, 129}) {
      Case c = base();
      c.m = m, c.rows = 17 * block.rows - 5, c.cols = 9 * block.cols - 8, c.block = block, c.density = 0.4;
      // What is read, a residual too, has rows at multiples of 16 bytes.
      if (c.direction == Direction::dx || m == 64) c.rows = 17 * block.rows - 8;
      if (c.direction == Direction::forward)
        c.bias = m > 1, c.residual = m == 64, c.activation = Activation::silu;
      check(c, Memory::exact_filled);
    }
}

TEST_P(CudaSmallExpanded, SkewedRows) {  // a full row, then fewer and fewer blocks, most rows empty
  for (const BlockShape block : kBlocks) {
    Case c = base();
    c.m = 20, c.rows = 24 * block.rows, c.cols = 24 * block.cols, c.block = block, c.density = 0.5,
    c.skewed = true;
    check(c, Memory::exact_filled);
  }
}

INSTANTIATE_TEST_SUITE_P(, CudaSmallExpanded, ::testing::ValuesIn(of_16_bits()), name_of);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaSmallExpanded);

class CudaHopperExpanded : public OnDevice {};

TEST_P(CudaHopperExpanded, EveryTokenCount) {
  for (const BlockShape block : {BlockShape{16, 16}, {32, 32}, {8, 8}})
    for (const std::int64_t m : {1, 33, 63, 64, 65, 96, 127, 128, 129, 255, 300, 512}) {
      Case c = base();
      c.m = m, c.rows = 1000, c.cols = 1200, c.block = block, c.density = 0.2;
      check(c);
    }
}

TEST_P(CudaHopperExpanded, BlockRowsOfAnyLength) {  // tiles in all thread blocks, in a few, and many in one
  for (const BlockShape block : {BlockShape{16, 16}, {32, 32}, {8, 8}})
    for (const auto& [rows, cols] : {std::pair{32, 32768}, {300, 8192}, {4096, 2048}, {60000, 128}})
      for (const bool skewed : {false, true}) {
        Case c = base();
        c.m = 40, c.rows = rows, c.cols = cols, c.block = block, c.density = skewed ? 0.9 : 0.1,
        c.skewed = skewed;
        if (c.direction == Direction::dx) std::swap(c.rows, c.cols);
        check(c);
      }
}

TEST_P(CudaHopperExpanded, SameBitsInEveryRun) {
  for (const BlockShape block : {BlockShape{16, 16}, {32, 32}}) {
    Case c = base();
    c.m = 200, c.rows = 2000, c.cols = 4096, c.block = block, c.density = 0.3, c.skewed = block.rows == 32;
    Instance instance(c);
    const kernels::Kernel* kernel = kernel_on_device(instance, kName);
    if (kernel == nullptr) GTEST_SKIP();
    expect_same_bits(instance, *kernel, 100);
    if (HasFatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(, CudaHopperExpanded, ::testing::ValuesIn(of_16_bits()), name_of);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaHopperExpanded);

}  // namespace
}  // namespace sparseloom::testing
