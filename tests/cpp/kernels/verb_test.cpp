// The verb bsr_linear: everything that a choice depends on is in the key, and the rows keep their numbers.
#include "kernels/bsr_linear/verb.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "kernels/registry.h"
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
      [](Problem& p) { p.facts = Facts::of_digest(0); },
      [](Problem& p) { p.facts = Facts::of_digest(1); },
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
      [](Problem& p) { p.fast_accum = true; },
      [](Problem& p) { p.strict = true; },
      [](Problem& p) { p.out = DType::bf16; },
  };
  std::set<ProblemKey> keys;
  for (const auto change : kChanges) {
    Problem p;
    change(p);
    EXPECT_TRUE(keys.insert(Linear::key(p)).second) << to_string(p);
  }
}

TEST(BsrLinear, RowsHaveOneNumberInBothLists) {
  const auto known = registry();
  const auto rows = plan::rows_of(Linear::kName);
  ASSERT_EQ(rows.size(), known.size());
  for (std::size_t i = 0; i < rows.size(); ++i) EXPECT_STREQ(rows[i].name, known[i].name);
}

}  // namespace
}  // namespace sparseloom::kernels::bsr_linear
