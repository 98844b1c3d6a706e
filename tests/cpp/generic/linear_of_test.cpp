// LinearOf: a layout that the library does not know, planned and multiplied through the process's registry.
#include "sparseloom/linear_of.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "generic/ell.h"
#include "kernels/case.h"

namespace sparseloom {
namespace {

using outside::Ell;
using Linear = LinearOf<Ell>;

constexpr std::int64_t kTokens = 2, kRows = 3, kCols = 4;

/// W = [[1 0 2 0] [0 0 0 0] [0 3 0 4]], by hand.
const std::vector<std::int32_t> kCol = {0, 2, -1, -1, 1, 3};
const std::vector<float> kValues = {1, 2, 0, 0, 3, 4}, kX = {1, 2, 3, 4, 5, 6, 7, 8},
                         kDy = {1, 2, 3, 4, 5, 6}, kBias = {10, 20, 30};
const outside::EllView kView{kRows, kCols, 2, kCol.data()};

// Plain loops. All sums of this file are of small integers, which fp32 holds exactly in any order.
void plain_gemm(void*, const Gemm& g) {
  const auto *a = static_cast<const float*>(g.a.data), *b = static_cast<const float*>(g.b.data),
             *bias = static_cast<const float*>(g.bias);
  const std::int64_t inner = g.b_transposed ? g.b.cols : g.b.rows;
  for (std::int64_t i = 0; i < g.c.rows; ++i)
    for (std::int64_t j = 0; j < g.c.cols; ++j) {
      float sum = bias ? bias[j] : 0;
      for (std::int64_t k = 0; k < inner; ++k)
        sum += a[i * g.a.stride + k] * (g.b_transposed ? b[j * g.b.stride + k] : b[k * g.b.stride + j]);
      static_cast<float*>(g.c.data)[i * g.c.stride + j] = sum;
    }
}

std::vector<float> product(Direction direction, const char* kernel, const Executor& executor) {
  Linear::Problem problem = Linear::describe(kView, direction, DType::f32, kTokens);
  problem.bias = direction == Direction::forward;
  const auto plan = Linear::plan(problem, executor, kernel);
  EXPECT_EQ(plan->kernel_name, kernel);
  std::vector<float> out(direction == Direction::dw        ? kValues.size()
                         : direction == Direction::forward ? kTokens * kRows
                                                           : kTokens * kCols,
                         -1);
  MatmulArgs args;
  args.a = direction == Direction::forward ? kX.data() : kDy.data();
  args.a_stride = direction == Direction::forward ? kCols : kRows;
  args.b = kX.data(), args.b_stride = kCols;
  args.values = kValues.data();
  args.bias = problem.bias ? kBias.data() : nullptr;
  args.out = out.data(), args.out_stride = direction == Direction::forward ? kRows : kCols;
  Workspace workspace;
  Linear::run(*plan, args, kView, workspace.at_least(plan->workspace_bytes), executor);
  return out;
}

TEST(LinearOf, MultipliesByBothGenericRows) {
  Executor executor = testing::backwards(2);
  executor.gemm = plain_gemm;
  for (const char* kernel : {"reference", "dense"}) {
    EXPECT_EQ(product(Direction::forward, kernel, executor), (std::vector<float>{17, 20, 52, 29, 20, 80}));
    EXPECT_EQ(product(Direction::dx, kernel, executor), (std::vector<float>{1, 9, 2, 12, 4, 18, 8, 24}));
  }
  EXPECT_EQ(product(Direction::dw, "reference", executor), (std::vector<float>{21, 31, 0, 0, 42, 60}));
}

TEST(LinearOf, ExplainsItsChoice) {
  const auto plan = Linear::plan(Linear::describe(kView, Direction::dw, DType::bf16, 5), Executor::serial());
  EXPECT_EQ(plan->kernel_name, "reference");
  EXPECT_EQ(plan->describe().find("plan: dw bf16 m=5 W=[3, 4] layout=ell stored=6 threads=1\n"), 0u);
  EXPECT_NE(plan->describe().find("not dense: the executor lends no GEMM"), std::string::npos);
}

TEST(LinearOf, RefusesWhatNoRowRuns) {
  Linear::Problem problem = Linear::describe(kView, Direction::forward, DType::f32, 5);
  problem.strict = true;
  EXPECT_THROW(Linear::plan(problem, Executor::serial()), Error);
  problem = Linear::describe(kView, Direction::forward, DType::i8, 5);
  EXPECT_THROW(Linear::plan(problem, Executor::serial()), Error);
}

TEST(LinearOf, RunsOnlyWhatWasPlanned) {
  const Executor serial = Executor::serial();
  const auto plan = Linear::plan(Linear::describe(kView, Direction::dx, DType::f32, kTokens), serial);
  Workspace workspace;
  const auto lent = workspace.at_least(plan->workspace_bytes);
  ASSERT_GT(lent.size(), 0u);
  outside::EllView other = kView;
  other.width = 1;
  EXPECT_THROW(Linear::run(*plan, {}, other, lent, serial), Error);
  EXPECT_THROW(Linear::run(*plan, {}, kView, lent.first(1), serial), Error);
  MatmulArgs with_bias;
  with_bias.bias = kBias.data();
  EXPECT_THROW(Linear::run(*plan, with_bias, kView, lent, serial), Error);
}

TEST(LinearOf, KeysDifferWhereProblemsDo) {
  const Linear::Problem p = Linear::describe(kView, Direction::forward, DType::f32, 5);
  const auto differs = [&](auto change) {
    Linear::Problem other = p;
    change(other);
    return Linear::key(other) != Linear::key(p);
  };
  EXPECT_TRUE(differs([](auto& o) { o.direction = Direction::dx; }));
  EXPECT_TRUE(differs([](auto& o) { o.dtype = DType::f64; }));
  EXPECT_TRUE(differs([](auto& o) { o.m = 6; }));
  EXPECT_TRUE(differs([](auto& o) { o.rows = 4; }));
  EXPECT_TRUE(differs([](auto& o) { o.cols = 5; }));
  EXPECT_TRUE(differs([](auto& o) { o.stored = 7; }));
  EXPECT_TRUE(differs([](auto& o) { o.bias = true; }));
  EXPECT_TRUE(differs([](auto& o) { o.activation = Activation::silu; }));
  EXPECT_TRUE(differs([](auto& o) { o.residual = true; }));
  EXPECT_TRUE(differs([](auto& o) { o.strict = true; }));
  EXPECT_TRUE(differs([](auto& o) { o.threads = 2; }));
  EXPECT_TRUE(differs([](auto& o) { o.device = 0; }));
  EXPECT_TRUE(differs([](auto& o) { o.can_gemm = true; }));
  EXPECT_TRUE(differs([](auto& o) { o.rates.gemm_flops = 1; }));
}

}  // namespace
}  // namespace sparseloom
