// Every CUDA kernel against fp64, per output tile, and exactly on small integers: each block shape, edge,
// alignment and depth.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <utility>

#include "kernels/bsr_linear/cuda/rows.h"
#include "kernels/cuda/device_call.h"

namespace sparseloom::testing {
namespace {

constexpr std::int32_t kSides[] = {8, 16, 32, 64, 128};
// The corners of the range, squares, and the common 64 x 32 both ways.
constexpr BlockShape kFewBlocks[] = {{8, 8}, {16, 16}, {8, 128}, {128, 8}, {64, 32}, {32, 64}, {128, 128}};

class CudaProducts : public OnDevice {
 protected:
  // `depth` is what the product sums over.
  static void set_shape(Case& c, std::int64_t depth, std::int64_t others, std::int64_t blocked_others) {
    switch (c.direction) {
      case Direction::forward: c.m = others, c.cols = depth, c.rows = blocked_others; break;
      case Direction::dx: c.m = others, c.rows = depth, c.cols = blocked_others; break;
      case Direction::dw: c.m = depth, c.rows = c.cols = blocked_others; break;
    }
  }
};

TEST_P(CudaProducts, AllBlockShapes) {
  for (const std::int32_t bm : kSides)
    for (const std::int32_t bn : kSides) {
      Case c = base();
      c.block = {bm, bn}, c.density = 0.5;
      c.m = 37, c.rows = 3 * bm, c.cols = 4 * bn;
      check_on_device(c);
      c.m = 130, c.rows = 3 * bm - 3, c.cols = 4 * bn - 5, c.stride_padding = 3, c.seed = 2;
      check_on_device(c);
      c.m = 300, c.rows = 2 * bm + 1, c.cols = 3 * bn + 2, c.stride_padding = 8, c.seed = 3;
      check_on_device(c);
    }
}

TEST_P(CudaProducts, SmallIntegersExactly) {
  for (const std::int32_t bm : kSides)
    for (const std::int32_t bn : kSides)
      for (const std::int64_t m : {6, 77}) {
        Case c = base();
        c.integers = true, c.density = 0.3, c.bias = c.direction == Direction::forward;
        c.m = m, c.rows = 250, c.cols = 300, c.block = {bm, bn};
        check_on_device(c);
      }
}

// Around every multiple of the widths that a tile of tokens may have.
TEST_P(CudaProducts, Tokens) {
  for (const std::int64_t m :
       {1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 191, 193, 255, 256, 257, 511, 513})
    for (const BlockShape block : {BlockShape{32, 32}, {8, 64}}) {
      Case c = base();
      c.m = m, c.rows = 96, c.cols = 128, c.block = block;
      check_on_device(c);
    }
}

// Element offsets and strides of every alignment from 2 to 32 bytes, in the matrices and in values.
TEST_P(CudaProducts, Alignments) {
  for (const BlockShape block : kFewBlocks)
    for (const std::int64_t shift : {1, 2, 3, 4, 5, 7, 8, 16}) {
      Case c = base();
      c.m = 50, c.rows = 2 * block.rows, c.cols = 3 * block.cols, c.block = block, c.density = 0.6;
      c.stride_padding = shift, c.bias = c.direction == Direction::forward;
      check_on_device(c);
      c.m = 5, c.values_shift = shift;
      check_on_device(c);
      c.stride_padding = 0;
      check_on_device(c);
    }
}

// Rows in multiples of 16 bytes, which TMA asks for and most ragged widths are not: blocks that reach beyond
// the edges, and what the dW kernel on TMA deals out: rows of more blocks than it sums at once, and tokens
// cut into pieces where there are few blocks.
TEST_P(CudaProducts, AlignedRows) {
  for (const std::int32_t bm : {32, 64, 128})
    for (const std::int32_t bn : {32, 64, 128}) {
      Case c = base();
      c.block = {bm, bn}, c.density = 0.5;
      c.m = 300, c.rows = 3 * bm - 8, c.cols = 5 * bn - 24, c.stride_padding = 8;
      check_on_device(c);
      if (c.direction != Direction::dw) continue;
      c.m = 1100, c.rows = 2 * bm, c.cols = 3 * bn + 16, c.stride_padding = 0;
      check_on_device(c);
      c.m = 70, c.rows = 2 * bm, c.cols = 2048, c.density = 0.85;
      check_on_device(c);
    }
  if (base().direction != Direction::dw) return;
  Case c =
      base();  // more items than thread blocks, and a rest that is cut; more rows than a warp sees at once
  c.m = 520, c.rows = 4800, c.cols = 64, c.block = {32, 32}, c.density = 0.9;
  check_on_device(c);
}

TEST_P(CudaProducts, RaggedEdges) {
  for (const BlockShape block : kFewBlocks)
    for (const std::int64_t m : {3, 50})
      for (const std::int64_t cut : {1, 3, 4, 7}) {
        Case c = base();
        c.m = m, c.block = block, c.density = 0.6;
        c.rows = 3 * block.rows - cut,
        c.cols = 3 * block.cols - cut;  // padding 0: the width itself breaks the rows' alignment
        check_on_device(c);
        c.rows = cut, c.cols = cut, c.density = 1;  // one block, mostly padding
        check_on_device(c);
      }
}

TEST_P(CudaProducts, EmptyFullAndSkewed) {
  for (const BlockShape block : kFewBlocks)
    for (const double density : {0.0, 0.05, 1.0})
      for (const std::int64_t m : {5, 70}) {
        Case c = base();
        c.m = m, c.rows = 300, c.cols = 200, c.block = block, c.density = density;
        c.bias = c.direction == Direction::forward;
        if (c.bias) c.activation = Activation::relu;
        check_on_device(c);
      }
  for (const std::int64_t m : {9, 200}) {
    Case c = base();
    c.m = m, c.rows = 512, c.cols = 640, c.block = {32, 16}, c.density = 0.7, c.skewed = true;
    check_on_device(c);
    std::swap(c.rows, c.cols), c.block = {8, 64};
    check_on_device(c);
  }
}

// More tiles than multiprocessors, so that thread blocks go from block rows with blocks to block rows without
// any and back.
TEST_P(CudaProducts, ManyTilesOfFewBlocks) {
  for (const BlockShape block : {BlockShape{32, 32}, {64, 64}, {128, 128}}) {
    Case c = base();
    c.m = 2000, c.rows = 2560, c.cols = 512, c.block = block, c.density = 0.1;
    if (c.direction == Direction::dx) std::swap(c.rows, c.cols);
    check_on_device(c);
  }
}

// Few blocks, most of them in the same places: more than a kernel makes room for by their density.
TEST_P(CudaProducts, CrowdedPlaces) {
  if (base().direction == Direction::dw) return;
  for (const double density : {0.9, 0.97})
    for (const std::int64_t rows : {1024, 4096, 16384}) {
      Case c = base();
      c.m = 70, c.rows = rows, c.cols = 330, c.block = {16, 16}, c.density = density, c.skewed = true;
      check_on_device(c);
    }
}

// Long sums: rings of buffers turn many times, and what the tokens of dW are cut into is added up again.
TEST_P(CudaProducts, Deep) {
  for (const BlockShape block : kFewBlocks) {
    Case c = base();
    c.block = block, c.density = 0.5;
    set_shape(c, 4000, 70, 130);
    check_on_device(c);
    set_shape(c, 4003, 9, 129);
    c.stride_padding = 1;
    check_on_device(c);
  }
  if (base().direction == Direction::dw)
    for (const BlockShape block : {BlockShape{8, 8}, {16, 64}, {128, 128}}) {
      Case c = base();
      c.m = 20011, c.rows = block.rows, c.cols = block.cols, c.block = block,
      c.density = 1;  // one block, all multiprocessors
      check_on_device(c);
    }
}

// More tiles than multiprocessors, of every kernel.
TEST_P(CudaProducts, Wide) {
  for (const BlockShape block : {BlockShape{16, 16}, {32, 32}, {64, 64}, {128, 128}})
    for (const std::int64_t m : {40, 520}) {
      Case c = base();
      c.m = m, c.rows = 1100, c.cols = 1000, c.block = block, c.density = 0.15;
      check_on_device(c);
    }
  for (const std::int64_t m : {1, 300}) {  // thousands of rows of blocks, one column of them
    Case c = base();
    c.m = m, c.rows = 20000, c.cols = 30, c.block = {8, 16}, c.density = 0.3;
    check_on_device(c);
    std::swap(c.rows, c.cols), c.block = {16, 8};
    check_on_device(c);
  }
  Case c = base();
  c.m = 70000, c.rows = 24, c.cols = 40, c.block = {16, 16},
  c.density = 0.5;  // more tiles of tokens than a grid's y may have, at one each
  check_on_device(c);
}

INSTANTIATE_TEST_SUITE_P(, CudaProducts, ::testing::ValuesIn(products_and_sums()), name_of);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaProducts);

class CudaEpilogue : public OnDevice {};

TEST_P(CudaEpilogue, BiasAndActivations) {
  for (const Activation activation : activations())
    for (const bool bias : {false, true})
      for (const std::int64_t m : {4, 37, 130}) {
        Case c = base();
        c.activation = activation, c.bias = bias;
        c.m = m, c.rows = 61, c.cols = 256, c.block = {16, 32};
        check_on_device(c);
        c.rows = 200, c.cols = 190, c.block = {128, 8}, c.stride_padding = 1;
        check_on_device(c);
      }
}

TEST_P(CudaEpilogue, Residuals) {
  for (const Activation activation : {Activation::none, Activation::gelu_erf})
    for (const std::int64_t m : {4, 37, 130}) {
      Case c = base();
      c.activation = activation, c.bias = m != 37, c.residual = true;
      c.m = m, c.rows = 61, c.cols = 256, c.block = {16, 32};
      check_on_device(c);
      c.rows = 200, c.cols = 190, c.block = {128, 8}, c.stride_padding = 1;
      check_on_device(c);
      c.rows = 200, c.cols = 192, c.block = {32, 64}, c.stride_padding = 8;
      check_on_device(c);
      c.rows = 520, c.cols = 128, c.block = {16, 16}, c.stride_padding = 0, c.density = 0.05;
      check_on_device(c);
    }
}

// More tiles than thread blocks, so that boxes of one tile follow those of another, to the bit in every run.
TEST_P(CudaEpilogue, ResidualsOfManyTiles) {
  for (const BlockShape block : {BlockShape{32, 32}, {64, 64}, {128, 128}}) {
    Case c = base();
    c.m = 2100, c.rows = 2040, c.cols = 256, c.block = block, c.density = 0.3, c.bias = true,
    c.residual = true;
    check_on_device(c);
    Instance instance(c);
    for (const kernels::Kernel* kernel : runnable_on_device(instance.cuda_problem(0))) {
      const Matrix first = run_on_device(instance, *kernel);
      EXPECT_EQ(run_on_device(instance, *kernel).bytes, first.bytes) << kernel->name;
    }
  }
}

// Some thread blocks take three tiles, of one stage to eight: a tile's boxes leave beside as many stages of
// the next as it has, and the last tile's behind them.
TEST_P(CudaEpilogue, BoxesBesideTheNextTile) {
  if (size_of(base().dtype) > 2) return;  // outputs of fp32 leave with their tile
  for (const BlockShape block : {BlockShape{64, 64}, {128, 128}, {64, 32}, {128, 32}}) {
    Case c = base();
    c.m = 3400, c.rows = 2490, c.cols = 512, c.block = block, c.density = 0.75, c.skewed = true,
    c.bias = block.cols != 64;
    check_on_device(c);
    Instance instance(c);
    for (const kernels::Kernel* kernel : runnable_on_device(instance.cuda_problem(0))) {
      const Matrix first = run_on_device(instance, *kernel);
      EXPECT_EQ(run_on_device(instance, *kernel).bytes, first.bytes) << kernel->name;
    }
  }
}

// Some thread blocks take several tiles, of one stage to sixteen: what is handed over of one is taken while
// the next is multiplied.
TEST_P(CudaEpilogue, PreActivationOfManyTiles) {
  if (size_of(base().dtype) != 2) return;
  const std::pair<BlockShape, Activation> cases[] = {{{32, 32}, Activation::gelu_erf},
                                                     {{64, 64}, Activation::silu},
                                                     {{128, 128}, Activation::gelu_tanh},
                                                     {{128, 32}, Activation::relu},
                                                     {{32, 64}, Activation::gelu_erf}};
  for (const auto& [block, activation] : cases) {
    Case c = base();
    c.m = 3400, c.rows = 2488, c.cols = 512, c.block = block, c.density = 0.8, c.skewed = true,
    c.bias = block.cols != 64;
    c.activation = activation;
    check_pre_on_device(c);
  }
}

// Nothing stored, so the activation alone: to fp32's last bits of its argument, and of 16 bits within a few
// percent of half an ulp. The left tails are not held to relative accuracy, as on the CPU: torch's own forms
// cancel there.
TEST_P(CudaEpilogue, ActivationsOverTheirRange) {
  for (const Activation activation : functions())
    for (const std::int64_t m : {3, 70}) {
      Case c = base();
      c.m = m, c.rows = 400, c.cols = 8, c.block = {8, 8}, c.density = 0, c.bias = true,
      c.activation = activation;
      Instance instance(c);
      for (std::int64_t o = 0; o < c.rows; ++o) instance.bias.set(0, o, static_cast<double>(o - 200) * 0.17);
      const double far = activation == Activation::relu2 ? 200 : 1e4;  // fp16 ends at 65504
      instance.bias.set(0, 0, -far), instance.bias.set(0, 399, far);
      for (const kernels::Kernel* kernel : runnable_on_device(instance.cuda_problem(0))) {
        const Matrix out = run_on_device(instance, *kernel);
        const double half_ulp = c.dtype == DType::f32 ? 0x1p-24 : c.dtype == DType::f16 ? 0x1p-11 : 0x1p-8;
        for (std::int64_t o = 0; o < c.rows; ++o) {
          const double x = instance.bias.at(0, o), expected = activate(activation, x);
          const double own = c.dtype == DType::f32 ? 0 : 1.5e-4 * std::abs(expected);
          EXPECT_NEAR(
              out.at(2, o), expected,
              half_ulp * std::abs(expected) + own + 0x1p-22 * std::abs(x) * slope(activation, x) + 0x1p-25)
              << kernel->name << " at " << x;
        }
      }
    }
}

INSTANTIATE_TEST_SUITE_P(, CudaEpilogue, ::testing::ValuesIn(products_of(Direction::forward)), name_of);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaEpilogue);

// Every count of tokens that the decode kernels know, and a few that they refuse.
class CudaDecode : public OnDevice {};

TEST_P(CudaDecode, EveryTokenCount) {
  for (const BlockShape block : {BlockShape{8, 8}, {32, 32}, {128, 64}, {16, 128}})
    for (std::int64_t m = 1; m <= 70; ++m) {
      Case c = base();
      c.m = m, c.rows = 130, c.cols = 150, c.block = block, c.density = 0.5;
      c.stride_padding = m % 4, c.bias = c.direction == Direction::forward && m % 2 == 0,
      c.integers = m % 5 == 0;
      check_on_device(c);
    }
}

TEST_P(CudaDecode, LongRows) {
  for (const BlockShape block : {BlockShape{8, 8}, {16, 16}, {32, 32}, {64, 64}, {128, 128}})
    for (const std::int64_t m : {1, 3, 16, 64}) {
      Case c = base();
      c.m = m, c.rows = 64, c.cols = 8200, c.block = block, c.density = 0.3;
      if (c.direction == Direction::dx) std::swap(c.rows, c.cols);
      check_on_device(c);
    }
}

std::vector<Product> decoded() {
  std::vector<Product> list = products();
  std::erase_if(list, [](const Product& p) { return p.direction == Direction::dw; });
  return list;
}

INSTANTIATE_TEST_SUITE_P(, CudaDecode, ::testing::ValuesIn(decoded()), name_of);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaDecode);

class CudaKernels : public ::testing::TestWithParam<int> {};

TEST_P(CudaKernels, EachIsExercisedOnThisMachine) {
  std::set<std::string> seen;
  for (const Product& product : products()) {
    Problem p;
    p.direction = product.direction, p.dtype = product.dtype, p.tf32 = product.tf32, p.device = 0;
    p.m = 4, p.rows = 64, p.cols = 64, p.blocks = 1;
    for (const std::int32_t side : {8, 16, 32}) {  // some take small blocks alone, others large ones
      p.block = {side, side};
      for (const kernels::Kernel* kernel : runnable_on_device(p)) seen.insert(kernel->name);
    }
  }
  for (const kernels::Kernel& kernel : kernels::cuda_kernels())
    EXPECT_EQ(seen.count(kernel.name), 1u) << kernel.name;
}

INSTANTIATE_TEST_SUITE_P(, CudaKernels, ::testing::ValuesIn(when_devices(1)));
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaKernels);

// On the second device, and turn by turn: what a kernel sets once, it must set once per device.
class CudaSecondDevice : public OnDevice {};

TEST_P(CudaSecondDevice, TurnByTurn) {
  for (const BlockShape block : {BlockShape{16, 16}, {128, 64}})
    for (const std::int64_t m : {6, 150})
      for (const int device : {1, 0, 1}) {
        Case c = base();
        c.m = m, c.rows = 300, c.cols = 270, c.block = block;
        check_on_device(c, Memory::guarded, device);
      }
}

INSTANTIATE_TEST_SUITE_P(, CudaSecondDevice, ::testing::ValuesIn(products_and_sums(2)), name_of);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaSecondDevice);

}  // namespace
}  // namespace sparseloom::testing
