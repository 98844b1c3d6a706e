// A dense copy saves the scatter: its product is predicted to take less time than the row `dense`, by the
// time of the copy of W.
#include "ops/dense_copy.h"

#include <gtest/gtest.h>

#include "kernels/shared/cost/cost_terms.h"
#include "ops/machine.h"
#include "runtime/cpu.h"
#include "sparseloom/error.h"
#include "sparseloom/generic/dense.h"
#include "sparseloom/layout.h"
#include "sparseloom/ops.h"

namespace sparseloom::ops {
namespace {

void none(void*, const Gemm&) {}

// Half of the blocks of a [1024, 1024] weight: the row `dense` can win only where the lent GEMM is measured.
BlockPattern half() {
  BlockPattern pattern(1024, 1024, {32, 32});
  for (std::int64_t r = 0; r < 32; ++r)
    for (std::int64_t c = r % 2; c < 32; c += 2) pattern.set(r, c, true);
  return pattern;
}

std::shared_ptr<const Plan> plan_of(std::int64_t m, const Executor& executor, bool strict = false) {
  const BlockIndex index(half());
  Problem problem = describe(index.view(), DType::f32, Direction::forward, m);
  problem.strict = strict;
  return make_plan(problem, index.view(), executor, strict ? "" : "dense");
}

TEST(DenseCopy, SavesTheScatter) {
  Executor executor;
  executor.gemm = none;
  const std::int64_t m = 256;
  const auto plan = plan_of(m, executor);
  const std::optional<double> us = dense_copy_us(*plan, executor);
  ASSERT_TRUE(us.has_value());
  const double row = plan->candidates[static_cast<std::size_t>(plan->kernel)].predicted_us;
  const double rate =
      kernels::generic::kScatterShareOfCopy * known_machine(executor).machine.rates.copy_bytes;
  const double scatter = 1e6 * 1024 * 1024 * 4 / rate;
  EXPECT_GE(*us, 0);
  EXPECT_NEAR(row - *us, scatter, 1e-6 * row);
}

TEST(DenseCopy, IsNoneUnderStrict) {
  Executor executor;
  executor.gemm = none;
  const auto strict = [&] { return dense_copy_us(*plan_of(256, executor, true), executor); };
  if (runtime::active_isa() == runtime::Isa::generic)
    EXPECT_THROW(strict(), Error);  // no sparse kernel runs here, so there is no plan either
  else
    EXPECT_FALSE(strict().has_value());
}

TEST(DenseCopy, IsNoneWithoutALentProduct) {
  const BlockIndex index(half());
  const Executor lends_none;
  const auto plan =
      make_plan(describe(index.view(), DType::f32, Direction::forward, 256), index.view(), lends_none);
  EXPECT_FALSE(dense_copy_us(*plan, lends_none).has_value());
}

TEST(DenseCopy, SavesTheUnpackingOf24Weights) {
  Executor executor;
  executor.gemm = none;
  Semi24Linear::Problem problem =
      Semi24Linear::describe(Semi24View{1024, 1024, nullptr}, Direction::forward, DType::f32, 256);
  const auto plan = Semi24Linear::plan(problem, executor, "dense");
  const std::optional<double> us = dense_copy_us(*plan, executor);
  ASSERT_TRUE(us.has_value());
  const double rate =
      kernels::generic::kScatterShareOfCopy * known_machine(executor).machine.rates.copy_bytes;
  const double scatter = 1e6 * 1024 * 1024 * 4 / rate;
  EXPECT_GE(*us, 0);
  // The row of LinearOf predicts nothing for what comes before the first flop of a call; the copy's does.
  EXPECT_NEAR(plan->predicted_us - (*us - kernels::cpu::kCallUs), scatter, 1e-6 * plan->predicted_us);
  EXPECT_FALSE(dense_copy_us(*Semi24Linear::plan(problem, Executor()), Executor()).has_value());
}

}  // namespace
}  // namespace sparseloom::ops
