// Products of few tokens where sm90_decode_lines cuts them: a block row to a thread block, stages of 32 or 64
// columns to its warps, 8, 16, 32 or 64 tokens; with many blocks of 16, X passes two thread blocks in chunks
// of 512 columns, half of a block row's blocks each. CudaSmall*: for compute-sanitizer too.
#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/bsr_linear/sm90/decode_lines/x_streamed/entry.h"
#include "kernels/cuda/device_call.h"
#include "runtime/cuda.h"

namespace sparseloom::testing {
namespace {

std::vector<Product> halves() {
  std::vector<Product> list = products_of(Direction::forward);
  std::erase_if(list, [](const Product& p) { return size_of(p.dtype) != 2; });
  return list;
}

class CudaSmallDecode : public OnDevice {};

TEST_P(CudaSmallDecode, RaggedEdgesAndTokens) {
  for (const BlockShape block : {BlockShape{16, 16}, {32, 32}, {64, 32}, {32, 64}, {128, 128}})
    for (const std::int64_t m : {1, 9, 24, 33, 64}) {
      Case c = base();
      c.m = m, c.rows = 3 * block.rows - 5, c.cols = 5 * block.cols - 24, c.block = block, c.density = 0.6;
      c.bias = m > 1, c.activation = m % 2 == 0 ? Activation::silu : Activation::none;
      check_on_device(c, Memory::exact_filled);
    }
}

TEST_P(CudaSmallDecode, SkewedRows) {  // a full row, then fewer and fewer blocks, most rows empty
  for (const BlockShape block : {BlockShape{16, 16}, {32, 32}, {128, 64}}) {
    Case c = base();
    c.m = 20, c.rows = 14 * block.rows - 1, c.cols = 24 * block.cols, c.block = block, c.density = 0.5,
    c.skewed = true;
    c.bias = true, c.activation = Activation::relu;
    check_on_device(c, Memory::exact_filled);
  }
}

/// Whether sm90_decode_lines lets X pass.
bool passes(const Instance& instance) {
  const Problem problem = instance.cuda_problem(0);
  return kernels::cuda::decode_lines::x_streamed::passes(
      problem.m, problem.rows, problem.cols, problem.blocks, runtime::cuda_device(0).multiprocessors / 2);
}

TEST_P(CudaSmallDecode, XPasses) {  // of two chunks, of more than fit; block rows alike and not
  for (const auto& [rows, cols] : {std::pair{91, 2024}, {43, 5000}})
    for (const bool skewed : {false, true})
      for (const std::int64_t m : {17, 32}) {
        Case c = base();
        c.m = m, c.rows = rows, c.cols = cols, c.block = {16, 16}, c.density = skewed ? 0.95 : 0.8,
        c.skewed = skewed;
        c.bias = m == 17, c.residual = m == 17, c.activation = m == 32 ? Activation::relu : Activation::none;
        if (!skewed) {
          EXPECT_TRUE(passes(Instance(c)));
        }
        check_on_device(c, Memory::exact_filled);
      }
}

TEST_P(CudaSmallDecode, NoBlocks) {
  Case c = base();
  c.m = 12, c.rows = 100, c.cols = 64, c.block = {32, 32}, c.density = 0, c.bias = true;
  check_on_device(c, Memory::exact);
}

TEST_P(CudaSmallDecode, MisalignedOperands) {
  for (const BlockShape block : {BlockShape{16, 16}, {32, 32}}) {
    Case c = base();
    c.m = 17, c.rows = 96, c.cols = 160, c.block = block, c.density = 0.5, c.stride_padding = 3;
    check_on_device(c, Memory::exact);
    c.stride_padding = 0, c.values_shift = 1;
    check_on_device(c, Memory::exact);
    c.values_shift = 0, c.cols = 157;
    check_on_device(c, Memory::exact);
  }
}

INSTANTIATE_TEST_SUITE_P(, CudaSmallDecode, ::testing::ValuesIn(halves()), name_of);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaSmallDecode);

class CudaHopperDecode : public OnDevice {};

TEST_P(CudaHopperDecode, EveryTokenCount) {
  for (const BlockShape block : {BlockShape{16, 16}, {32, 32}, {64, 128}})
    for (std::int64_t m = 1; m <= 64; ++m) {
      Case c = base();
      c.m = m, c.rows = 200, c.cols = 456, c.block = block, c.density = 0.5, c.bias = m % 2 == 0,
      c.integers = m % 5 == 0;
      check_on_device(c);
    }
}

TEST_P(CudaHopperDecode, BlockRowsOfAnyLength) {  // of fewer blocks than warps, and of many for each
  for (const BlockShape block : {BlockShape{16, 16}, {32, 32}, {64, 64}, {128, 32}, {32, 128}, {128, 128}})
    for (const double density : {0.01, 0.1, 0.9})
      for (const auto& [rows, cols] : {std::pair{30, 16384}, {300, 8192}, {5000, 256}}) {
        Case c = base();
        c.m = 32, c.rows = rows, c.cols = cols, c.block = block, c.density = density,
        c.skewed = density > 0.5 && rows == 300;
        check_on_device(c);
      }
}

TEST_P(CudaHopperDecode, MoreBlockRowsThanRunAtOnce) {  // of blocks of 16
  Case c = base();
  c.m = 32, c.rows = 20000, c.cols = 12280, c.block = {16, 16}, c.density = 0.002, c.bias = true;
  check_on_device(c);
  c.m = 7, c.rows = 30000, c.cols = 300, c.density = 0.1;
  check_on_device(c);
}

TEST_P(
    CudaHopperDecode,
    XPassesAnyNumberOfBlockRows) {  // of two thread blocks: one; fifteen, but fewer of the last; two rounds
  for (const auto& [rows, cols] : {std::pair{16, 16000}, {15400, 1024}, {20000, 1512}}) {
    Case c = base();
    c.m = 29, c.rows = rows, c.cols = cols, c.block = {16, 16}, c.density = 0.6, c.bias = true;
    EXPECT_TRUE(passes(Instance(c)));
    check_on_device(c);
  }
}

TEST_P(CudaHopperDecode, SameBitsInEveryRun) {
  for (const BlockShape block : {BlockShape{16, 16}, {32, 32}, {128, 128}}) {
    Case c = base();
    c.m = 32, c.rows = 2000, c.cols = 4096, c.block = block, c.density = 0.5;
    Instance instance(c);
    const kernels::Kernel* kernel = kernel_on_device(instance, "sm90_decode_lines");
    if (kernel == nullptr) continue;
    expect_same_bits(instance, *kernel, 200);
    if (HasFatalFailure()) return;
  }
}

TEST_P(CudaHopperDecode, UnevenBlockRowsGoToOtherKernels) {
  for (const BlockShape block : {BlockShape{16, 16}, {32, 32}, {64, 64}}) {
    Case c = base();
    c.m = 20, c.rows = 2000, c.cols = 4096, c.block = block, c.density = 0.3, c.skewed = true;
    Problem problem = Instance(c).cuda_problem(0);
    problem.facts = {.known = true, .uneven_rows = true};
    for (const kernels::Kernel* kernel : runnable_on_device(problem))
      EXPECT_STRNE(kernel->name, "sm90_decode_lines");
  }
}

INSTANTIATE_TEST_SUITE_P(, CudaHopperDecode, ::testing::ValuesIn(halves()), name_of);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaHopperDecode);

}  // namespace
}  // namespace sparseloom::testing
