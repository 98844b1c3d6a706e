// A product allocates nothing: outputs and workspace are the caller's. Counted by core/allocation.h.
#include "core/allocation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "sparseloom/sparseloom.h"

namespace sparseloom {
namespace {

int allocations_of(const std::string& kernel, Direction direction, std::int64_t m, const Executor& executor) {
  const BsrMatrix w(BlockIndex(pattern::random(72, 88, {16, 8}, 0.4, 1)), DType::f32);
  Problem problem = describe(w, direction, m);
  problem.bias = direction == Direction::forward;
  const auto open = make_plan(problem, w, executor, "reference");
  const auto found = std::find_if(open->candidates.begin(), open->candidates.end(),
                                  [&](const Candidate& candidate) { return candidate.kernel == kernel; });
  if (found == open->candidates.end() || !found->refusal.empty()) return 0;  // of 8-bit products, or refused
  const auto plan = make_plan(problem, w, executor, kernel);
  std::vector<float> a(m * 88, 1.0f), b(m * 88, 1.0f), out(m * 88), bias(72);
  BsrMatrix dw(w.index(), w.dtype());
  Workspace workspace;
  workspace.at_least(plan->workspace_bytes);
  return testing::allocations_in([&] {
    if (direction == Direction::forward)
      linear(*plan, view(a.data(), m, 88), w, bias.data(), view(out.data(), m, 72, 88), workspace, executor);
    else if (direction == Direction::dx)
      linear_dx(*plan, view(a.data(), m, 72, 88), w, view(out.data(), m, 88), workspace, executor);
    else
      linear_dw(*plan, view(a.data(), m, 72, 88), view(b.data(), m, 88), dw, workspace, executor);
  });
}

TEST(Allocation, NoProductAllocates) {
  for (const Executor& executor : {Executor::serial(), Executor::pool(3)})
    for (const std::string& kernel : kernel_names())
      for (Direction direction : {Direction::forward, Direction::dx, Direction::dw})
        for (std::int64_t m : {1, 5, 200}) {
          if (kernel == "dense") continue;  // neither executor lends a GEMM
          EXPECT_EQ(allocations_of(kernel, direction, m, executor), 0)
              << kernel << ' ' << name_of(direction) << " m=" << m;
        }
}

TEST(Allocation, NoPlanThatIsKeptAllocates) {
  const BsrMatrix w(BlockIndex(pattern::random(72, 88, {16, 8}, 0.4, 1)), DType::f32);
  const Problem problem = describe(w, Direction::forward, 5);
  const auto first = make_plan(problem, w, Executor::serial());
  bool kept = false;
  EXPECT_EQ(testing::allocations_in([&] { kept = make_plan(problem, w, Executor::serial()) == first; }), 0);
  EXPECT_TRUE(kept);
}

TEST(Allocation, IsCounted) {
  std::vector<int>* leaves_a_mark = nullptr;
  EXPECT_GE(testing::allocations_in([&] { leaves_a_mark = new std::vector<int>(3); }), 1);
  delete leaves_a_mark;
}

}  // namespace
}  // namespace sparseloom
