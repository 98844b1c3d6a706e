// The subset for compute-sanitizer, whose tools make kernels 10 to 100 times slower: each kernel, direction,
// dtype and path of loads, in the smallest shapes, on allocations of their exact size.
#include <gtest/gtest.h>

#include "kernels/cuda/device_call.h"

namespace sparseloom::testing {
namespace {

class CudaSmall : public OnDevice {};

TEST_P(CudaSmall, Aligned) {
  for (const BlockShape block : {BlockShape{8, 8}, {16, 16}, {8, 128}, {128, 8}, {128, 128}}) {
    Case c = base();
    c.m = 24, c.rows = 2 * block.rows, c.cols = 2 * block.cols, c.block = block, c.density = 0.7;
    // Some kernels of 16-bit forward and dX read flags in a workspace of any content (ptx/flag.cuh).
    const bool flags = c.direction != Direction::dw && size_of(c.dtype) == 2;
    check_on_device(c, flags ? Memory::exact_filled : Memory::exact);
  }
}

TEST_P(CudaSmall, RaggedAndMisaligned) {
  for (const BlockShape block : {BlockShape{8, 8}, {16, 16}, {32, 64}, {8, 128}, {128, 8}, {128, 128}}) {
    Case c = base();
    c.m = 37, c.rows = 2 * block.rows - 3, c.cols = 2 * block.cols - 1, c.block = block, c.density = 0.7;
    c.stride_padding = 3, c.values_shift = 1;
    if (c.direction == Direction::forward) c.bias = c.residual = true, c.activation = Activation::gelu_tanh;
    check_on_device(c, Memory::exact);
    c.m = 1;
    check_on_device(c, Memory::exact);
  }
}

TEST_P(CudaSmall, DeepAndEmpty) {
  Case c = base();
  // dw by wgmma cuts many tokens into parts, 600 of fp32 and 800 of 16 bits, whose flags it reads in a
  // workspace of any content (wgmma/dw/parts.cuh): filled, or initcheck would report them.
  const bool cut = c.direction == Direction::dw && c.dtype == DType::f32;
  c.m = 300, c.rows = 40, c.cols = 150, c.block = {16, 32}, c.density = 0.4;
  check_on_device(c, Memory::exact);
  c.m = 20, c.density = 0, c.bias = c.direction == Direction::forward;
  check_on_device(c, Memory::exact);
  c.m = 600, c.rows = 64, c.cols = 120, c.block = {32, 32}, c.density = 0.7;
  check_on_device(c, cut ? Memory::exact_filled : Memory::exact);
  for (const BlockShape block : {BlockShape{16, 16}, {32, 32}, {128, 128}}) {
    c.m = 800, c.rows = 2 * block.rows, c.cols = 2 * block.cols, c.block = block;
    check_on_device(c, Memory::exact_filled);
  }
}

// With an activation behind it, which warps of their own apply (wgmma/forward/epilogue_warps.cuh), and a
// residual's own epilogue.
TEST_P(CudaSmall, PreActivation) {
  Case c = base();
  if (c.direction != Direction::forward || size_of(c.dtype) != 2) return;  // of fp32 a pass is behind it
  for (const BlockShape block : {BlockShape{16, 16}, {32, 32}, {64, 64}, {128, 128}}) {
    c.m = 300, c.rows = 2 * block.rows + 40, c.cols = 2 * block.cols, c.block = block, c.density = 0.7,
    c.stride_padding = 8;
    c.bias = true, c.activation = Activation::gelu_erf, c.residual = block.rows == 64;
    check_pre_on_device(c, Memory::exact);
  }
}

INSTANTIATE_TEST_SUITE_P(, CudaSmall, ::testing::ValuesIn(products_and_sums()), name_of);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaSmall);

}  // namespace
}  // namespace sparseloom::testing
