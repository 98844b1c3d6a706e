// bsr_conv's CUDA rows on small integers: borders, strides, dilations, one to three
// axes, ragged and misaligned channels, empty block rows, every epilogue. CudaSmall*: for compute-sanitizer
// too.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "kernels/bsr_conv/rows.h"
#include "kernels/bsr_conv/sm80/entry.h"
#include "kernels/bsr_linear/sm80/mma/dw/cut.h"
#include "kernels/cuda/conv_case.h"
#include "runtime/cuda.h"
#include "sparseloom/executor.h"

namespace sparseloom::testing {
namespace {

namespace cuda = kernels::cuda;
using kernels::conv::Axis;
using Shape = ConvShape;

std::vector<int> devices() { return when_devices(1); }

/// Shapes in space; each is small enough for the answer on the CPU.
std::vector<Shape> shapes() {
  const Axis none;
  return {
      {{none, axis_of(6, 3, 1, 1), axis_of(7, 3, 1, 1)}, 3},
      {{none, axis_of(9, 3, 2, 1), axis_of(8, 3, 2, 1)}, 3},
      {{none, axis_of(9, 3, 1, 2, 2), axis_of(7, 3, 1, 2, 2)}, 2},
      {{none, axis_of(9, 1), axis_of(8, 3, 1, 1)}, 2},
      {{none, axis_of(9, 3, 2, 0), axis_of(8, 1, 1, 2)}, 2},
      {{none, axis_of(11, 1), axis_of(13, 1)}, 2},
      {{none, axis_of(10, 1, 2), axis_of(9, 1, 2)}, 2},
      {{none, axis_of(13, 5, 3, 2, 1), axis_of(14, 4, 2, 1, 3)}, 1},
      {{none, axis_of(8, 2, 2), axis_of(9, 2, 4)}, 3},
      {{none, none, axis_of(30, 5, 1, 2)}, 3},
      {{none, none, axis_of(31, 4, 3, 2, 2)}, 3},
      {{none, none, axis_of(40, 33, 1, 5)}, 2},                  // more taps than bits of a word
      {{none, axis_of(11, 9, 1, 2), axis_of(13, 10, 2, 1)}, 1},  // more than a table of taps has
      {{axis_of(4, 3, 1, 1), axis_of(5, 3, 1, 1), axis_of(6, 3, 1, 1)}, 2},
      {{axis_of(5, 2, 2, 1), axis_of(6, 3, 1, 0, 2), axis_of(7, 1, 2)}, 2},
  };
}

bsr_conv::Problem problem_of(const ConvCase& c, const MatmulArgs& args) {
  bsr_conv::Problem p;
  p.direction = c.direction, p.dtype = c.dtype, p.device = 0, p.tf32 = true;
  p.m = args.m, p.rows = c.rows, p.cols = c.cols, p.block = c.block, p.blocks = args.index.blocks;
  p.shape = c.shape;
  p.bias = args.bias != nullptr, p.residual = args.residual != nullptr, p.activation = args.activation;
  p.accumulate = c.accumulate;
  const auto in_chunks = [&](std::int64_t width) {
    return (width + c.padding) * static_cast<std::int64_t>(size_of(c.dtype)) % 16 == 0;
  };
  p.aligned = p.out_aligned = in_chunks(c.rows) && in_chunks(c.cols);
  return p;
}

/// Every row that neither refuses nor leaves a part to the call; returns how many there were.
int check(const ConvCase& c, bool special = false) {
  const plan::Machine machine{runtime::Isa::generic, {}, runtime::cuda_device(0)};
  int ran = 0;
  for (const kernels::ConvRow& row : kernels::conv_cuda_rows()) {
    ConvCall call(c, special);
    plan::Offer offer;
    Proposals<bsr_conv::Conv> out(offer);
    const bsr_conv::Problem problem = problem_of(c, call.args());
    if (row.propose(problem, machine, out)) continue;
    // The call of conv() does in a pass of its own what a row's epilogue does not.
    const bool activates = c.direction == Direction::forward || row.traits.activates_dx;
    if ((problem.residual && !row.traits.adds_residual) ||
        (problem.activation != Activation::none && !activates))
      continue;
    SCOPED_TRACE(row.name);
    Schedule schedule;
    std::memcpy(&schedule, offer.schedule, sizeof schedule);
    call.check(offer.workspace_bytes, [&](const MatmulArgs& args, const ConvShape& shape) {
      return row.launch({args, shape}, schedule, Executor{});
    });
    ++ran;
  }
  return ran;
}

/// dW by mma.sync, with its pixels cut into so many pieces.
void check_pieces(const ConvCase& c, int pieces) {
  ConvCall call(c);
  Schedule schedule;
  schedule.tile_m = c.block.rows, schedule.tile_n = cuda::mma_dw_columns(c.block.rows);
  schedule.tile_k = cuda::mma_dw_tokens(static_cast<int>(size_of(c.dtype)));
  schedule.split_k = pieces;
  const std::int64_t elements = call.args().index.blocks * c.shape.taps() * c.block.rows * c.block.cols;
  call.check(static_cast<std::size_t>(elements * pieces * 4),
             [&](const MatmulArgs& args, const ConvShape& shape) {
               return cuda::sm80_conv_dw(args, shape, schedule);
             });
}

class CudaSmallConv : public ::testing::TestWithParam<int> {};

TEST_P(CudaSmallConv, EveryShapeInSpace) {
  std::uint64_t seed = 0;
  for (const Shape& shape : shapes())
    for (const Direction direction : {Direction::forward, Direction::dx, Direction::dw}) {
      ++seed;
      ConvCase c{direction, seed % 3 == 0 ? DType::f16 : DType::bf16, shape, 3 * 32 - 8, 4 * 32 - 16,
                 {32, 32}};
      c.bias = seed % 2 == 0, c.residual = seed % 7 == 0, c.relu = seed % 4 == 1, c.seed = seed;
      c.padding = seed % 4 == 0 ? 8 : 0;
      EXPECT_GE(check(c), 1) << describe(c);
    }
}

TEST_P(CudaSmallConv, EveryBlockAndDtype) {
  const Axis none;
  const Shape shape{{none, axis_of(6, 3, 1, 1), axis_of(5, 3, 2, 1)}, 2};
  std::uint64_t seed = 100;
  for (const BlockShape block :
       {BlockShape{8, 8}, {16, 16}, {32, 32}, {64, 64}, {128, 128}, {8, 64}, {64, 16}})
    for (const DType dtype : {DType::bf16, DType::f16, DType::f32})
      for (const Direction direction : {Direction::forward, Direction::dx, Direction::dw}) {
        ConvCase c{direction,
                   dtype,
                   shape,
                   3 * block.rows - (block.rows > 8 ? 3 : 0),
                   2 * block.cols + (block.cols < 64 ? 5 : 0),
                   block};
        c.seed = ++seed;
        EXPECT_GE(check(c), 1) << describe(c);
      }
}

TEST_P(CudaSmallConv, WhatNoBlockReadsDoesNotShow) {
  const Axis none;
  const Shape shape{{none, axis_of(6, 3, 1, 1), axis_of(5, 3, 2, 1)}, 2};
  for (const Direction direction : {Direction::forward, Direction::dx})
    EXPECT_GE(check({direction, DType::bf16, shape, 3 * 32, 4 * 32, {32, 32}}, true), 1);
}

TEST_P(CudaSmallConv, DwAddsToWhatIsThere) {
  const Axis none;
  const Shape shape{{none, axis_of(16, 3, 1, 1), axis_of(15, 3, 1, 1)}, 2};
  ConvCase c{Direction::dw, DType::bf16, shape, 2 * 64, 2 * 64, {64, 64}};
  c.accumulate = true;
  EXPECT_GE(check(c), 1);
  check_pieces(c, 3);
}

class CudaConv : public ::testing::TestWithParam<int> {};

// Many tiles of pixels, across images; several K tiles of channels, and groups of block rows; every row that
// Hopper has.
TEST_P(CudaConv, RunsOfPixelsInManyTiles) {
  const Axis none;
  std::uint64_t seed = 300;
  for (const int side : {32, 64, 128})
    for (const Direction direction : {Direction::forward, Direction::dx})
      for (const Shape& shape : {Shape{{none, axis_of(14, 3, 1, 1), axis_of(14, 3, 1, 1)}, 5},
                                 Shape{{none, axis_of(9, 5, 1, 2), axis_of(30, 3, 1, 1, 1)}, 3},
                                 Shape{{none, axis_of(12, 3, 1, 0), axis_of(13, 2, 1, 1)}, 4}}) {
        ++seed;
        ConvCase c{direction,   seed % 3 == 0 ? DType::f16 : DType::bf16, shape, 2 * 128 - 8, 2 * 128 - 24,
                   {side, side}};
        c.bias = seed % 2 == 0, c.relu = seed % 4 == 1 && direction == Direction::forward, c.seed = seed;
        EXPECT_GE(check(c), 1) << describe(c);
      }
}

INSTANTIATE_TEST_SUITE_P(, CudaConv, ::testing::ValuesIn(devices()));
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaConv);

INSTANTIATE_TEST_SUITE_P(, CudaSmallConv, ::testing::ValuesIn(devices()));
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaSmallConv);

}  // namespace
}  // namespace sparseloom::testing
