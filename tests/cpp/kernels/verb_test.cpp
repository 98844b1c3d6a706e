// The verbs of BSR: everything that a choice depends on is in the key, and every row of the library is there.
#include "kernels/bsr_linear/verb.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "ops/rows.h"
#include "plan/registry.h"

namespace sparseloom::kernels::bsr_linear {
namespace {

TEST(BsrLinear, EveryMemberOfAProblemChangesItsKey) {
  constexpr void (*kChanges[])(Problem&) = {
      [](Problem&) {},
      [](Problem& p) { p.direction = Direction::dx; },
      [](Problem& p) { p.dtype = DType::bf16; },
      [](Problem& p) { p.m = 5; },
      [](Problem& p) { p.rows = 5; },
      [](Problem& p) { p.cols = 5; },
      [](Problem& p) { p.block.rows = 8; },
      [](Problem& p) { p.block.cols = 8; },
      [](Problem& p) { p.blocks = 5; },
      [](Problem& p) { p.facts = Facts::of_digest(2); },
      [](Problem& p) { p.facts = Facts::of_digest(3); },
      [](Problem& p) { p.aligned = false; },
      [](Problem& p) { p.out_aligned = false; },
      [](Problem& p) { p.bias = true; },
      [](Problem& p) { p.activation = Activation::relu; },
      [](Problem& p) { p.residual = true; },
      [](Problem& p) { p.accumulate = true; },
      [](Problem& p) { p.threads = 2; },
      [](Problem& p) { p.can_gemm = true; },
      [](Problem& p) { p.device = 0; },
      [](Problem& p) { p.tf32 = true; },
      [](Problem& p) { p.strict = true; },
  };
  std::set<ProblemKey> keys;
  for (const auto change : kChanges) {
    Problem p;
    change(p);
    EXPECT_TRUE(keys.insert(Linear::key(p)).second) << to_string(p);
  }
}

TEST(BsrScaledLinear, EveryMemberOfAProblemChangesItsKey) {
  constexpr void (*kChanges[])(ScaledProblem&) = {
      [](ScaledProblem&) {},
      [](ScaledProblem& p) { p.dtype = DType::i8; },
      [](ScaledProblem& p) { p.m = 5; },
      [](ScaledProblem& p) { p.rows = 5; },
      [](ScaledProblem& p) { p.cols = 5; },
      [](ScaledProblem& p) { p.block.rows = 8; },
      [](ScaledProblem& p) { p.block.cols = 8; },
      [](ScaledProblem& p) { p.blocks = 5; },
      [](ScaledProblem& p) { p.facts = Facts::of_digest(2); },
      [](ScaledProblem& p) { p.facts = Facts::of_digest(3); },
      [](ScaledProblem& p) { p.aligned = false; },
      [](ScaledProblem& p) { p.out_aligned = false; },
      [](ScaledProblem& p) { p.bias = true; },
      [](ScaledProblem& p) { p.activation = Activation::relu; },
      [](ScaledProblem& p) { p.threads = 2; },
      [](ScaledProblem& p) { p.can_gemm = true; },
      [](ScaledProblem& p) { p.device = 0; },
      [](ScaledProblem& p) { p.strict = true; },
      [](ScaledProblem& p) { p.fast_accum = true; },
      [](ScaledProblem& p) { p.out = DType::bf16; },
  };
  std::set<ProblemKey> keys;
  for (const auto change : kChanges) {
    ScaledProblem p;
    change(p);
    EXPECT_TRUE(keys.insert(Scaled::key(p)).second) << to_string(p);
  }
}

TEST(BsrLinear, AKernelOfBothVerbsIsListedOnce) {
  std::set<std::string> names;
  for (const ops::Listed& kernel : ops::listed_kernels())
    EXPECT_TRUE(names.insert(kernel.name).second) << kernel.name;
  for (const char* verb : {Linear::kName, Scaled::kName})
    for (const plan::AnyRow& row : plan::rows_of(verb)) EXPECT_TRUE(names.contains(row.name)) << row.name;
  EXPECT_TRUE(names.contains("dense") && names.contains("reference"));
}

}  // namespace
}  // namespace sparseloom::kernels::bsr_linear
