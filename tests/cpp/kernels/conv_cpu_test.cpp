// Convolutions by every CPU row that does not refuse, on small integers, whose sums are exact: each element
// of each direction against the definition in fp64, with any number of threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "core/rng.h"
#include "kernels/bsr_conv/rows.h"
#include "kernels/conv_cpu_case.h"
#include "runtime/cpu.h"

namespace sparseloom::testing {
namespace {

constexpr Direction kDirections[] = {Direction::forward, Direction::dx, Direction::dw};

Candidate dense_of(const ConvPlan& plan) {
  return *std::find_if(plan.candidates.begin(), plan.candidates.end(),
                       [](const Candidate& each) { return each.kernel == "dense"; });
}

void check(const CpuConvCase& c, DType dtype) {
  for (const Direction direction : kDirections) {
    CpuConv instance(c, dtype, direction);
    for (const Row<bsr_conv::Conv>& row : kernels::conv_cpu_rows()) {
      if (!instance.takes(row.name)) continue;
      SCOPED_TRACE(std::string(row.name) + " " + name_of(direction) + " " + name_of(dtype));
      const Matrix out = instance.run(row.name, Executor::serial());
      instance.compare(out);
      EXPECT_EQ(out.bytes, instance.run(row.name, backwards(3)).bytes);
    }
    if (c.images == 0) continue;  // `dense` has nothing to multiply
    CpuConvCase lent = c;
    if (dtype != DType::f32)
      lent.residual = false;  // `dense` adds it in a pass of its own: 16 bits round twice
    CpuConv dense(lent, dtype, direction);
    if (dense_of(*plan_conv(dense.problem(), lending())).refusal.starts_with("torch's gradient")) continue;
    SCOPED_TRACE(std::string("dense ") + name_of(direction) + " " + name_of(dtype));
    dense.compare(dense.run("dense", lending()));
  }
}

TEST(ConvOnCpu, EveryShapeInSpace) {
  const ConvWindow one{1}, wide{9, 3, 1, 1, 1};
  const std::vector<std::vector<ConvWindow>> shapes{
      {wide, wide},
      {{9, 3, 2, 1}, {8, 3, 2, 1}},
      {{9, 3, 1, 2, 2}, {7, 3, 1, 2, 2}},
      {{9, 3, 2}, {8, 1, 1, 2}},
      {{11, 1}, {13, 1}},
      {{10, 1, 2}, {9, 1, 2}},  // classes of dX without a tap
      {{13, 5, 3, 2, 1}, {14, 4, 2, 1, 3}},
      {{8, 2, 2}, {9, 2, 4}},  // pixels of x under no tap
      {{9, 2, 2, 0, 2}, {4, 4, 3, 3, 2}},
      {{30, 5, 1, 2}},
      {{31, 4, 3, 2, 2}},
      {{1, 3, 1, 1}},
      {{4, 3, 1, 1}, {5, 3, 1, 1}, {6, 3, 1, 1}},
      {{5, 2, 2, 1}, {6, 3, 1, 0, 2}, {7, 1, 2}},
      {one, one, {20, 3, 2, 1}},
  };
  for (const auto& axes : shapes)
    for (const DType dtype : {DType::f32, DType::bf16}) {
      CpuConvCase c{axes};
      c.bias = axes.size() != 1, c.padding = dtype == DType::f32 ? 0 : 3;
      c.residual = axes.size() != 2, c.relu = axes.size() != 3;
      check(c, dtype);
    }
}

TEST(ConvOnCpu, EveryBlockAndDtypeOfRaggedChannels) {
  for (const BlockShape block :
       {BlockShape{8, 8}, {16, 16}, {32, 32}, {64, 64}, {128, 128}, {8, 64}, {64, 16}})
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      CpuConvCase c{{{6, 3, 1, 1}, {5, 3, 2, 1}}};
      c.block = block, c.rows = 3 * block.rows - 3, c.cols = 2 * block.cols + 5;
      c.bias = c.relu = c.residual = true;
      check(c, dtype);
    }
}

// Also where dY is infinite, whose product with a zero is NaN. Few pixels and many go other ways.
TEST(ConvOnCpu, PaddingOfDwIsZero) {
  for (const std::int64_t images : {1, 20})
    for (const BlockShape block : {BlockShape{8, 8}, {16, 32}, {32, 16}})
      for (const DType dtype : {DType::f32, DType::bf16}) {
        CpuConvCase c{{{3, 3, 1, 1}, {4, 3, 1, 1}}};
        c.images = images, c.block = block, c.rows = 2 * block.rows - 3, c.cols = 2 * block.cols - 5;
        CpuConv instance(c, dtype, Direction::dw);
        instance.spoil();
        for (const Row<bsr_conv::Conv>& row : kernels::conv_cpu_rows()) {
          if (!instance.takes(row.name)) continue;
          SCOPED_TRACE(row.name);
          instance.expect_zero_padding(instance.run(row.name, backwards(2)));
        }
      }
}

TEST(ConvOnCpu, EmptyRowsOneBlockAndNone) {
  CpuConvCase c{{{6, 3, 1, 1}, {5, 3, 2, 1}}};
  c.rows = c.cols = 64, c.empty = true, c.bias = true;
  check(c, DType::f32);
  c.density = 0;
  check(c, DType::f32);
  c.rows = c.cols = 16, c.empty = false, c.density = 1;  // one channel block
  check(c, DType::f32);
  check(c, DType::bf16);
}

// The lender may keep y, dx or dW in memory of its own: dW's blocks are read from there, and the epilogue
// runs there; y and dx are left as they are.
TEST(ConvOnCpu, ALentResultStaysInItsMemory) {
  CpuConvCase c{{{6, 3, 1, 1}, {5, 3, 2, 1}}};
  c.bias = c.relu = c.residual = true;
  for (const Direction direction : kDirections) {
    CpuConv instance(c, DType::f32, direction);
    std::vector<std::byte> kept;
    Executor executor = Executor::serial();
    executor.context = &kept, executor.conv = lent_conv;
    const Matrix out = instance.run("dense", executor), expected = instance.run("dense", lending());
    if (direction == Direction::dw) {
      EXPECT_EQ(out.bytes, expected.bytes);
    } else {
      EXPECT_NE(out.bytes, expected.bytes);
      EXPECT_EQ(std::memcmp(kept.data(), expected.bytes.data(), kept.size()), 0);
    }
  }
}

TEST(ConvOnCpu, DenseIsLentPredictedAndForbidden) {
  CpuConv instance({{{14, 3, 1, 1}, {14, 3, 1, 1}}}, DType::f32, Direction::forward);
  EXPECT_FALSE(instance.takes("dense"));  // the executor lends none
  const auto plan_of = [&](bool strict) {
    bsr_conv::Problem problem = instance.problem();
    problem.strict = strict;
    return plan_conv(problem, lending());
  };
  const auto plan = plan_of(false);
  EXPECT_EQ(dense_of(*plan).refusal, "");
  EXPECT_GT(dense_of(*plan).predicted_us, dense_conv_time(instance.problem(), lending()).product_us);
  EXPECT_EQ(dense_of(*plan_of(true)).refusal, "strict forbids going dense");
  EXPECT_EQ(dense_conv_time(instance.problem(), Executor::serial()).product_us, 0);
}

// oneDNN's gradient of W overran its memory there, with AVX-512 (torch 2.11, fp32): a plan does not even
// measure it.
TEST(ConvOnCpu, DenseTakesNoGradientThatTorchOverruns) {
  const bool has_avx512 = runtime::detected_isa().has(runtime::Isa::avx512);
  static int calls;
  Executor counted = lending();
  counted.conv = [](void* context, DenseConv& conv) {
    ++calls;
    lent_conv(context, conv);
  };
  const auto refuses = [&](int padding, DType dtype, Direction direction) {
    const CpuConvCase c{{{4, 5, 2, padding}, {7, 2}, {7, 3}}};
    calls = 0;
    return dense_of(*plan_conv(CpuConv(c, dtype, direction).problem(), counted, "")).refusal != "";
  };
  EXPECT_EQ(refuses(3, DType::f32, Direction::dw), has_avx512);
  EXPECT_TRUE(calls == 0 || !has_avx512);
  EXPECT_FALSE(refuses(2, DType::f32, Direction::dw));
  EXPECT_FALSE(refuses(3, DType::bf16, Direction::dw));
  EXPECT_FALSE(refuses(3, DType::f32, Direction::dx));
}

// Several chunks of pixels, several K tiles, and more pixels than a register tile has.
TEST(ConvOnCpu, ManyPixelsAndTaps) {
  CpuConvCase c{{{40, 3, 1, 1}, {40, 3, 1, 1}}};
  c.rows = 24, c.cols = 136, c.block = {8, 8};
  check(c, DType::f32);
  check(c, DType::f16);
  c.axes = {{12, 7, 1, 3}, {12, 7, 1, 3}}, c.images = 1;
  c.rows = c.cols = 128, c.block = {16, 32}, c.density = 1;
  check(c, DType::f32);
}

CpuConvCase drawn(core::Rng& rng) {
  const auto below = [&](std::int64_t n) {
    return static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>(n)));
  };
  constexpr std::int32_t kSides[] = {8, 8, 16, 32, 64, 128};
  CpuConvCase c;
  const std::int64_t axes = 1 + below(3);
  for (std::int64_t a = 0; a < axes; ++a) {
    ConvWindow w;
    w.kernel = 1 + below(axes == 3 ? 3 : 7), w.stride = 1 + below(4), w.dilation = 1 + below(3);
    w.padding = below(w.kernel + 2);
    const std::int64_t fewest = std::max<std::int64_t>(1, (w.kernel - 1) * w.dilation + 1 - 2 * w.padding);
    w.in = fewest + below(axes == 1 ? 40 : axes == 2 ? 9 : 4);
    c.axes.push_back(w);
  }
  c.images = 1 + below(5);
  c.block = {kSides[below(6)], kSides[below(6)]};
  c.rows = 1 + below(3 * c.block.rows), c.cols = 1 + below(3 * c.block.cols);
  c.density = 0.1 * static_cast<double>(1 + below(10));
  c.bias = below(2) == 0, c.padding = below(3) == 0 ? below(9) : 0, c.empty = below(6) == 0;
  c.relu = below(2) == 0, c.residual = below(2) == 0;
  return c;
}

// SPARSELOOM_TEST_CASES and SPARSELOOM_TEST_SEED ask for more of them.
TEST(ConvOnCpu, ShapesThatNobodyChose) {
  const auto number = [](const char* name, int otherwise) {
    const char* const given = std::getenv(name);
    return given ? std::atoi(given) : otherwise;
  };
  constexpr DType kDTypes[] = {DType::f32, DType::f16, DType::bf16};
  core::Rng rng(static_cast<std::uint64_t>(number("SPARSELOOM_TEST_SEED", 1)));
  for (int i = 0; i < number("SPARSELOOM_TEST_CASES", 20); ++i) {
    const CpuConvCase c = drawn(rng);
    const DType dtype = kDTypes[rng.below(3)];
    check(c, dtype);
    CpuConv(c, dtype, Direction::forward).expect_packing_undone();
  }
}

TEST(ConvOnCpu, NoImages) {
  CpuConvCase c{{{6, 3, 1, 1}, {5, 3, 2, 1}}};
  c.images = 0;
  check(c, DType::f32);
}

TEST(ConvOnCpu, AWorkspaceHoldsFewPixels) {
  // 64 images of 56 x 56 and 1024 channels: laid out under nine taps, x would take 7.4 GB.
  std::vector<std::int32_t> crow(33, 0), col;
  for (std::int32_t r = 0; r < 32; ++r) col.push_back(r), crow[static_cast<std::size_t>(r + 1)] = r + 1;
  const IndexView index{1024, 1024, {32, 32}, 32, crow.data(), col.data()};
  for (const std::int64_t stride : {1, 2})
    for (const Direction direction : kDirections) {
      const std::vector<ConvWindow> axes(2, ConvWindow{56, 3, stride, 1, 1});
      const ConvShape shape = conv_shape("test", 64, axes);
      const bsr_conv::Problem problem = describe_conv(index, shape, DType::f32, direction);
      try {
        EXPECT_LE(plan_conv(problem, index, Executor::serial())->workspace_bytes, std::size_t{24} << 20);
      } catch (const Error&) {
        GTEST_SKIP() << "no row runs on this machine";
      }
    }
}

}  // namespace
}  // namespace sparseloom::testing
