// Selection among the rows of a verb that the library does not know, as a family from outside has one.
#include <gtest/gtest.h>

#include <string>

#include "plan/machine.h"
#include "plan/toy_verb.h"
#include "sparseloom/error.h"
#include "sparseloom/extension.h"

namespace sparseloom::plan {
namespace {

template <class V>
PlanOf<V> choose(const typename V::Problem& problem, const std::string& forced = {}) {
  return typed<V>(problem, select(any<V>(problem), Machine{}, forced));
}

template <class V, int us>
Refusal offer(const typename V::Problem&, const Machine&, Proposals<V>& out) {
  out.add({{us}, us, us * 64});
  return {};
}

template <class V>
int nothing(const typename V::Args&, const typename V::Schedule&, const Executor&) {
  return 0;
}

TEST(Select, TakesTheFastestThatDoesNotRefuse) {
  using V = ToyOf<1>;
  static constexpr Row<V> kRows[] = {
      {"slow", Placement::any, offer<V, 30>, nothing<V>},
      {"best", Placement::any,
       [](const Toy::Problem& p, const Machine&, Proposals<V>&) {
         return Refusal("takes {} numbers, the {} has {}", 7, "call", p.count);
       },
       nothing<V>},
      {"fast", Placement::any, offer<V, 10>, nothing<V>, "its NaN spreads"},
      {"tie", Placement::any, offer<V, 10>, nothing<V>},
  };
  int number = 0;
  for (const Row<V>& row : kRows) EXPECT_EQ(register_row(row), number++);
  const PlanOf<V> plan = choose<V>({3});
  EXPECT_EQ(plan.kernel_name, "fast");  // the earlier row of a tie
  EXPECT_EQ(plan.kernel, 2);
  EXPECT_EQ(plan.workspace_bytes, 640u);
  EXPECT_EQ(plan.schedule.width, 10);
  EXPECT_EQ(plan.chosen, &kRows[2]);
  ASSERT_EQ(plan.candidates.size(), 4u);
  EXPECT_EQ(plan.candidates[1].refusal, "takes 7 numbers, the call has 3");
  EXPECT_EQ(plan.describe(),
            "plan: toy sum of 3\n"
            "  runs fast, predicted 10.0 us, workspace 640 bytes\n"
            "  fast: its NaN spreads\n"
            "  adds 10 at a time\n"
            "  not slow: predicted 30.0 us\n"
            "  not best: takes 7 numbers, the call has 3\n"
            "  not tie: predicted 10.0 us\n");
  EXPECT_EQ(choose<V>({3}, "slow").kernel_name, "slow");
  EXPECT_THROW(choose<V>({3}, "best"), Error);
  EXPECT_THROW(choose<V>({3}, "nobody"), Error);
}

TEST(Select, KeepsTheFastestScheduleOfARow) {
  using V = ToyOf<2>;
  static constexpr Row<V> kRow{"several", Placement::any,
                               [](const Toy::Problem&, const Machine&, Proposals<V>& out) {
                                 out.add({{4}, 8, 64});
                                 out.add({{8}, 5, 128});
                                 out.add({{16}, 5, 256});
                                 return Refusal();
                               },
                               nothing<V>};
  register_row(kRow);
  const PlanOf<V> plan = choose<V>({3});
  EXPECT_EQ(plan.schedule.width, 8);
  EXPECT_EQ(plan.predicted_us, 5);
  EXPECT_EQ(plan.workspace_bytes, 128u);
}

TEST(Select, SomeRowsRunOnlyByName) {
  using V = ToyOf<3>;
  static constexpr Row<V> kRow{"by_name", Placement::any,
                               [](const Toy::Problem&, const Machine&, Proposals<V>& out) {
                                 out.add({{1}, 1});
                                 out.only_by_name("only by name");
                                 return Refusal();
                               },
                               nothing<V>};
  static constexpr Row<V> kOther{"other", Placement::any, offer<V, 9>, nothing<V>};
  register_row(kRow), register_row(kOther);
  const PlanOf<V> plan = choose<V>({3});
  EXPECT_EQ(plan.kernel_name, "other");
  EXPECT_EQ(plan.candidates[0].refusal, "only by name");
  EXPECT_EQ(choose<V>({3}, "by_name").kernel_name, "by_name");
}

TEST(Select, NothingToRunNamesEveryRefusal) {
  using V = ToyOf<4>;
  constexpr auto kRefuses = [](const Toy::Problem& p, const Machine&, Proposals<V>&) -> Refusal {
    return p.strict ? "strict forbids it" : "wrong moon";
  };
  static constexpr Row<V> kRows[] = {{"a", Placement::any, kRefuses, nothing<V>},
                                     {"b", Placement::any, kRefuses, nothing<V>}};
  for (const Row<V>& row : kRows) register_row(row);
  try {
    choose<V>({3, -1, true});
    FAIL() << "expected Error";
  } catch (const Error& error) {
    EXPECT_EQ(error.op(), "plan");
    EXPECT_NE(error.expected().find("toy sum of 3"), std::string::npos) << error.what();
    EXPECT_NE(error.actual().find("a: strict forbids it; b: strict forbids it"), std::string::npos)
        << error.what();
    EXPECT_NE(error.remedy().find("strict=False"), std::string::npos) << error.what();
  }
  try {
    choose<ToyOf<0>>({3});
    FAIL() << "expected Error";
  } catch (const Error& error) {
    EXPECT_EQ(error.actual(), "no such candidate");
  }
}

TEST(Select, RowsOfTheOtherSideAreRefusedWithoutBeingAsked) {
  using V = ToyOf<5>;
  static constexpr Row<V> kRows[] = {{"on_cpu", Placement::cpu, offer<V, 10>, nothing<V>},
                                     {"on_cuda", Placement::cuda, offer<V, 10>, nothing<V>},
                                     {"anywhere", Placement::any, offer<V, 99>, nothing<V>}};
  for (const Row<V>& row : kRows) register_row(row);
  const PlanOf<V> host = choose<V>({3});
  EXPECT_EQ(host.kernel_name, "on_cpu");
  EXPECT_EQ(host.candidates[1].refusal, "runs on CUDA devices, the operands are on the CPU");
  const PlanOf<V> device = choose<V>({3, 2});
  EXPECT_EQ(device.kernel_name, "on_cuda");
  EXPECT_EQ(device.candidates[0].refusal, "runs on the CPU, the operands are on cuda:2");
  EXPECT_TRUE(device.candidates[2].refusal.empty());
  EXPECT_THROW(choose<V>({3, 2}, "on_cpu"), Error);
}

TEST(Registry, RefusesRowsThatItCouldNotCall) {
  using V = ToyOf<6>;
  static constexpr Row<V> kRow{"row", Placement::cpu, offer<V, 10>, nothing<V>};
  EXPECT_EQ(register_row(kRow), 0);
  EXPECT_EQ(register_row(kRow), SPARSELOOM_NAME_TAKEN);
  AnyRow row;
  EXPECT_EQ(sparseloom_register_row(&row), SPARSELOOM_INCOMPLETE);
  row.abi = kRowAbi + 1;
  EXPECT_EQ(sparseloom_register_row(&row), SPARSELOOM_OTHER_ABI);
  EXPECT_EQ(sparseloom_register_row(nullptr), SPARSELOOM_OTHER_ABI);
}

// As a library would that was built with another version of the family's headers.
TEST(Registry, RowsOfAVerbAgreeOnItsTypes) {
  struct Wider : ToyOf<6> {
    struct Schedule {
      int width[4];
    };
    static std::string print(const Toy::Problem& p) { return Toy::print(p); }
    static std::string print(const Schedule&) { return {}; }
  };
  static constexpr Row<Wider> kRow{
      "wider", Placement::cpu,
      [](const Toy::Problem&, const Machine&, Proposals<Wider>&) { return Refusal("never asked"); },
      nothing<Wider>};
  static constexpr Row<ToyOf<6>> kFirst{"first", Placement::cpu, offer<ToyOf<6>, 10>, nothing<ToyOf<6>>};
  register_row(kFirst);
  EXPECT_EQ(register_row(kRow), SPARSELOOM_OTHER_ABI);
}

}  // namespace
}  // namespace sparseloom::plan
