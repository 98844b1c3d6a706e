// Products of few tokens where sm90_shares cuts them: the same number of blocks to every thread block, so
// that a block row may lie in one, in two or in all of them, and a thread block may have one piece or a
// thousand block rows without blocks. CudaSmall*: for compute-sanitizer too.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "kernels/cuda/device_call.h"

namespace sparseloom::testing {
namespace {

constexpr const char* kName = "sm90_shares";
constexpr BlockShape kBlocks[] = {{32, 32}, {64, 64}, {128, 128}, {32, 128}, {64, 32}};

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

class CudaSmallShares : public OnDevice {};

TEST_P(CudaSmallShares, RaggedEdgesAndTokens) {
  for (const BlockShape block : kBlocks)
    for (const std::int64_t m : {1, 17, 64, 65, 129}) {
      Case c = base();
      c.m = m, c.rows = 3 * block.rows - 5, c.cols = 5 * block.cols - 24, c.block = block, c.density = 0.6;
      // What is read, a residual too, has rows at multiples of 16 bytes.
      if (c.direction == Direction::dx || m == 64) c.rows = 3 * block.rows - 8;
      if (c.direction == Direction::forward)
        c.bias = m > 1, c.residual = m == 64, c.activation = Activation::silu;
      check(c, Memory::exact_filled);
    }
}

TEST_P(CudaSmallShares, SkewedRows) {  // a full row, then fewer and fewer blocks, most rows empty
  for (const BlockShape block : kBlocks) {
    Case c = base();
    c.m = 20, c.rows = 14 * block.rows, c.cols = 24 * block.cols, c.block = block, c.density = 0.5,
    c.skewed = true;
    check(c, Memory::exact_filled);
  }
}

INSTANTIATE_TEST_SUITE_P(, CudaSmallShares, ::testing::ValuesIn(of_16_bits()), name_of);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaSmallShares);

class CudaHopperShares : public OnDevice {};

TEST_P(CudaHopperShares, EveryTokenCount) {
  for (const BlockShape block : kBlocks)
    for (const std::int64_t m : {1, 15, 16, 17, 31, 32, 33, 48, 64, 65, 96, 127, 128, 129, 192, 255, 256}) {
      Case c = base();
      c.m = m, c.rows = 1000, c.cols = 1200, c.block = block, c.density = 0.4;
      check(c);
    }
}

TEST_P(CudaHopperShares, BlockRowsOfAnyLength) {  // in all thread blocks, in a few, and many in one
  for (const BlockShape block : kBlocks)
    for (const auto& [rows, cols] : {std::pair{32, 32768}, {300, 8192}, {4096, 2048}, {60000, 128}})
      for (const bool skewed : {false, true}) {
        Case c = base();
        c.m = 40, c.rows = rows, c.cols = cols, c.block = block, c.density = skewed ? 0.9 : 0.2,
        c.skewed = skewed;
        if (c.direction == Direction::dx) std::swap(c.rows, c.cols);
        check(c);
      }
}

// Forward then has strips of 128 up to 64 tokens, which need some blocks to each multiprocessor.
TEST_P(CudaHopperShares, ManyBlocksOf128Outputs) {
  const bool forward = GetParam().direction == Direction::forward;
  for (const BlockShape block : {BlockShape{128, 32}, {128, 128}})
    for (const std::int64_t m : {3, 32, 50, 64, 100, 128, 200})
      for (const bool skewed : {false, true}) {
        Case c = base();
        c.m = m, c.rows = 4096 - 40, c.cols = 48 * block.cols, c.block = block, c.density = 0.45;
        c.skewed = skewed;
        if (forward) c.bias = m != 3, c.residual = m == 64, c.activation = Activation::silu;
        if (c.residual) c.rows = 4096 - 64;
        check(c);
      }
}

TEST_P(CudaHopperShares, SameBitsInEveryRun) {
  for (const BlockShape block : kBlocks) {
    Case c = base();
    c.m = 64, c.rows = 2000, c.cols = 4096, c.block = block, c.density = 0.3, c.skewed = block.rows == 64;
    Instance instance(c);
    const kernels::Kernel* kernel = kernel_on_device(instance, kName);
    if (kernel == nullptr) GTEST_SKIP();
    expect_same_bits(instance, *kernel, 200);
    if (HasFatalFailure()) return;
  }
}

TEST_P(CudaHopperShares, Replays) {  // which bring the same nonce again
  Case c = base();
  c.m = 64, c.rows = 2000, c.cols = 4096, c.block = {64, 64}, c.density = 0.3;
  Instance instance(c);
  const kernels::Kernel* kernel = kernel_on_device(instance, kName);
  if (kernel == nullptr) GTEST_SKIP();
  const Stream stream;
  DeviceCall call(instance, *kernel);
  call.upload(stream);
  stream.wait();
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t replayed = nullptr;
  EXPECT_CUDA(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < 3; ++i) EXPECT_CUDA(call.launch(stream.get()));
  EXPECT_CUDA(cudaStreamEndCapture(stream.get(), &graph));
  EXPECT_CUDA(cudaGraphInstantiate(&replayed, graph, 0));
  for (int i = 0; i < 100; ++i) EXPECT_CUDA(cudaGraphLaunch(replayed, stream.get()));
  expect_accurate(instance, call.download(stream), instance.answer());
  EXPECT_CUDA(cudaGraphExecDestroy(replayed));
  EXPECT_CUDA(cudaGraphDestroy(graph));
}

INSTANTIATE_TEST_SUITE_P(, CudaHopperShares, ::testing::ValuesIn(of_16_bits()), name_of);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaHopperShares);

}  // namespace
}  // namespace sparseloom::testing
