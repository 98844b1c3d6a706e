// plan_for: a family's own verb from the problem to the launch, with the process's cache and registry.
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "plan/toy_verb.h"

namespace sparseloom::plan {
namespace {

using V = ToyOf<7>;
int asked = 0;

template <int us>
Refusal propose(const Toy::Problem& p, const Machine&, Proposals<V>& out) {
  ++asked;
  if (p.count > 1000) return {"adds at most 1000 numbers, there are {}", p.count};
  out.add({{us}, us});
  return {};
}

int launch(const Toy::Args& args, const Toy::Schedule& schedule, const Executor&) {
  *args.out = std::accumulate(args.numbers, args.numbers + 3, 0.0) * schedule.width;
  return 0;
}

constexpr Row<V> kSlow{"slow", Placement::cpu, propose<30>, launch};
constexpr Row<V> kFast{"fast", Placement::cpu, propose<10>, launch};

TEST(PlanFor, PlansOnceAndRunsTheScheduleThatWasChosen) {
  ASSERT_EQ(register_row(kSlow), 0);
  const Executor executor = Executor::serial();
  const auto first = plan_for<V>({3}, executor);
  EXPECT_EQ(plan_for<V>({3}, executor), first);
  EXPECT_EQ(asked, 1);
  EXPECT_NE(plan_for<V>({4}, executor), first);
  EXPECT_FALSE(first->machine.empty());
  const std::vector<double> numbers{1, 2, 4};
  double out = 0;
  EXPECT_EQ(first->launch({numbers.data(), &out}, executor), 0);
  EXPECT_EQ(out, 7 * 30);
  // A row that enters later makes new plans; the old ones stay valid for whoever holds them.
  ASSERT_EQ(register_row(kFast), 1);
  const auto second = plan_for<V>({3}, executor);
  EXPECT_EQ(second->kernel_name, "fast");
  EXPECT_EQ(first->kernel_name, "slow");
  EXPECT_EQ(first->launch({numbers.data(), &out}, executor), 0);
  EXPECT_EQ(out, 7 * 30);
  const auto forced = plan_for<V>({3}, executor, "slow");
  EXPECT_EQ(forced->kernel_name, "slow");
  EXPECT_EQ(plan_for<V>({3}, executor, "slow"), forced);
}

}  // namespace
}  // namespace sparseloom::plan
