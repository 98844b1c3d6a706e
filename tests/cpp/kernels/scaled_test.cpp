// 8-bit products: every kernel, block, edge, kind of scale and output dtype; the sums' extremes; IEEE scales.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/scaled_case.h"

namespace sparseloom::testing {
namespace {

constexpr std::int32_t kSides[] = {8, 16, 32, 64, 128};

void check(const ScaledCase& c) {
  ScaledInstance instance(c);
  for (const kernels::ScaledKernel* kernel : scaled_runnable(instance.problem(1))) {
    SCOPED_TRACE(kernel->name);
    instance.expect_right(instance.run(*kernel, Executor::serial()));
  }
}

class ScaledBlocks : public ::testing::TestWithParam<std::tuple<std::int32_t, std::int32_t>> {};
TEST_P(ScaledBlocks, EveryEdgeScaleAndOutput) {
  const auto [bm, bn] = GetParam();
  int turn = 0;
  for (const DType dtype : {DType::i8, DType::f8e4m3})
    for (const std::int64_t m : {1, 3, 16, 37, 100}) {
      ScaledCase c;
      c.dtype = dtype, c.m = m, c.rows = 2 * bm + 3, c.cols = 3 * bn - 5, c.block = {bm, bn}, c.density = 0.6;
      c.x_each = turn & 1, c.w_each = turn & 2, c.out = turn & 4 ? DType::bf16 : DType::f32,
      c.bias = turn % 3 == 0;
      c.stride_padding = turn % 4, c.values_shift = turn % 3, c.seed = static_cast<std::uint64_t>(turn);
      ++turn;
      check(c);
    }
}
INSTANTIATE_TEST_SUITE_P(All, ScaledBlocks,
                         ::testing::Combine(::testing::ValuesIn(kSides), ::testing::ValuesIn(kSides)),
                         [](const auto& info) {
                           return std::to_string(std::get<0>(info.param)) + "x" +
                                  std::to_string(std::get<1>(info.param));
                         });

TEST(Scaled, EveryScaleOutputBiasAndActivation) {
  for (const DType dtype : {DType::i8, DType::f8e4m3})
    for (const DType out : {DType::f32, DType::bf16})
      for (const bool x_each : {false, true})
        for (const bool w_each : {false, true})
          for (const bool bias : {false, true})
            for (const Activation activation : activations()) {
              ScaledCase c;
              c.dtype = dtype, c.out = out, c.x_each = x_each, c.w_each = w_each, c.bias = bias,
              c.activation = activation;
              c.m = 21, c.rows = 75, c.cols = 90, c.block = {16, 32}, c.stride_padding = 1;
              check(c);
            }
}

TEST(Scaled, NoBlocksWriteTheBias) {
  for (const DType out : {DType::f32, DType::bf16}) {
    ScaledCase c;
    c.m = 19, c.rows = 45, c.cols = 64, c.block = {16, 16}, c.density = 0, c.bias = true, c.out = out;
    check(c);
    c.bias = false;
    check(c);
  }
}

// 128 x 16384 products of (-128)^2 or 127 * -128: 2^28 and beyond what a 16-bit or saturating step would
// hold.
TEST(Scaled, ExtremesDoNotOverflow) {
  for (const double x : {-128.0, 127.0})
    for (const double w : {-128.0, 127.0}) {
      ScaledCase c;
      c.m = 17, c.rows = 40, c.cols = 16384, c.block = {32, 64}, c.density = 1;
      ScaledInstance instance(c);
      instance.fill_x(x), instance.fill_values(w);
      for (const kernels::ScaledKernel* kernel : scaled_runnable(instance.problem(1))) {
        SCOPED_TRACE(kernel->name);
        instance.expect_right(instance.run(*kernel, Executor::serial()));
      }
    }
}

// The most that make_plan lets through: 131071 products of 2^14 are 2^31 - 2^14.
TEST(Scaled, TheLongestSumFits) {
  ScaledCase c;
  c.m = 2, c.rows = 8, c.cols = 131071, c.block = {8, 128}, c.density = 1;
  ScaledInstance instance(c);
  instance.fill_x(-128), instance.fill_values(-128);
  instance.x_scale = {1, 1}, instance.w_scale.assign(8, 1);
  for (const kernels::ScaledKernel* kernel : scaled_runnable(instance.problem(1)))
    EXPECT_EQ(instance.run(*kernel, Executor::serial()).at(1, 7), 0x1p31 - 0x1p14) << kernel->name;
}

TEST(Scaled, AnyNumberOfThreadsGivesTheSameBits) {
  for (const std::int32_t side : {8, 32, 128})
    for (const std::int64_t m : {1, 5, 48, 49, 200})
      for (const bool skewed : {false, true}) {
        ScaledCase c;
        c.m = m, c.rows = 520, c.cols = 720, c.block = {side, side}, c.density = 0.5, c.skewed = skewed,
        c.out = DType::bf16;
        ScaledInstance instance(c);
        for (const kernels::ScaledKernel* kernel : scaled_runnable(instance.problem(1))) {
          const Matrix one = instance.run(*kernel, Executor::serial());
          for (const int threads : {2, 3, 7})
            EXPECT_EQ(instance.run(*kernel, backwards(threads)).bytes, one.bytes)
                << kernel->name << " on " << threads;
          EXPECT_EQ(instance.run(*kernel, Executor::pool(3)).bytes, one.bytes)
              << kernel->name << " on the pool";
        }
      }
}

// Results below 2^-126, in whose place the fast conversion to bf16 writes zero.
TEST(Scaled, DenormalResultsAreKept) {
  for (const DType out : {DType::f32, DType::bf16}) {
    ScaledCase c;
    c.m = 40, c.rows = 64, c.cols = 96, c.block = {32, 32}, c.density = 1, c.out = out;
    ScaledInstance instance(c);
    for (float& scale : instance.x_scale) scale *= 0x1p-70f;
    for (float& scale : instance.w_scale) scale *= 0x1p-62f;
    for (const kernels::ScaledKernel* kernel : scaled_runnable(instance.problem(1))) {
      SCOPED_TRACE(kernel->name);
      const Matrix got = instance.run(*kernel, Executor::serial());
      instance.expect_right(got);
      EXPECT_NE(got.at(0, 0), 0);
      EXPECT_LT(std::abs(got.at(0, 0)), 0x1p-126);
    }
  }
}

// No case of their own: 0 * sum is 0, Inf * 0 and NaN are NaN, and no other token or output hears of it.
TEST(Scaled, ZeroInfAndNanScalesFollowIeee) {
  constexpr float kInf = std::numeric_limits<float>::infinity(),
                  kNan = std::numeric_limits<float>::quiet_NaN();
  for (const DType dtype : {DType::i8, DType::f8e4m3}) {
    ScaledCase c;
    c.dtype = dtype, c.m = 20, c.rows = 40, c.cols = 64, c.block = {8, 16}, c.density = 1;
    ScaledInstance instance(c);
    for (std::int64_t i = 0; i < c.cols; ++i) instance.x.set(6, i, 0);  // a token whose sums are zero
    instance.x_scale[2] = 0, instance.x_scale[3] = kInf, instance.x_scale[4] = kNan,
    instance.x_scale[5] = -kInf;
    instance.w_scale[9] = kInf, instance.w_scale[10] = kNan, instance.w_scale[11] = 0;
    for (const kernels::ScaledKernel* kernel : scaled_runnable(instance.problem(1))) {
      SCOPED_TRACE(kernel->name);
      const Matrix out = instance.run(*kernel, Executor::serial());
      ScaledInstance tame = instance;
      tame.x_scale = std::vector<float>(20, 1), tame.w_scale = std::vector<float>(40, 1);
      const Matrix sums = tame.run(*kernel, Executor::serial());
      for (std::int64_t t = 0; t < c.m; ++t)
        for (std::int64_t o = 0; o < c.rows; ++o) {
          const float sum = static_cast<float>(sums.at(t, o));
          const float expected = sum * instance.x_scale[static_cast<std::size_t>(t)] *
                                 instance.w_scale[static_cast<std::size_t>(o)];
          const double actual = out.at(t, o);
          ASSERT_TRUE(std::isnan(expected) ? std::isnan(actual) : actual == expected)
              << t << ", " << o << ": " << actual;
        }
    }
  }
}

// f8's NaN in x: at the outputs whose stored blocks multiply it and nowhere else.
TEST(Scaled, F8NanStaysUnderStoredBlocks) {
  ScaledCase c;
  c.dtype = DType::f8e4m3, c.m = 6, c.rows = 90, c.cols = 100, c.block = {16, 16};
  ScaledInstance instance(c);
  instance.x.poison(3, 40);
  for (const kernels::ScaledKernel* kernel : scaled_runnable(instance.problem(1))) {
    const Matrix out = instance.run(*kernel, Executor::serial());
    for (std::int64_t t = 0; t < c.m; ++t)
      for (std::int64_t o = 0; o < c.rows; ++o) {
        bool stored = false;
        for (std::int64_t b = instance.crow[static_cast<std::size_t>(o / 16)];
             b < instance.crow[static_cast<std::size_t>(o / 16) + 1]; ++b)
          stored |= instance.col[static_cast<std::size_t>(b)] == 40 / 16;
        ASSERT_EQ(std::isnan(out.at(t, o)), stored && t == 3) << kernel->name << " at " << t << ", " << o;
      }
  }
}

}  // namespace
}  // namespace sparseloom::testing
