// The products of CSR weights on the CPU, by every row that does not refuse, against fp64.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "core/backwards.h"
#include "kernels/csr_case.h"

namespace sparseloom {
namespace {

using testing::CsrCase;
using testing::CsrInstance;
using testing::Matrix;

constexpr DType kDTypes[] = {DType::f32, DType::f16, DType::bf16};

Matrix run(CsrInstance& instance, const std::string& kernel, const Executor& executor) {
  const auto plan = CsrLinear::plan(instance.problem(), executor, kernel);
  Matrix out = instance.output();
  MatmulArgs args;
  args.a = instance.a.data(), args.a_stride = instance.a.stride, args.b = instance.b.data(),
  args.b_stride = instance.b.stride;
  args.values = instance.values.data(), args.accumulate = instance.c.accumulate;
  if (instance.c.bias) args.bias = instance.bias.data();
  if (instance.c.residual)
    args.residual = instance.residual.data(), args.residual_stride = instance.residual.stride;
  args.out = out.data(), args.out_stride = out.stride;
  testing::Scratch workspace(plan->workspace_bytes);
  testing::calling([&] { return kernel + " " + instance.c.text(); });
  CsrLinear::run(*plan, args, instance.w, workspace.span(), executor);
  EXPECT_TRUE(out.padding_untouched()) << kernel << " wrote outside the output: " << instance.c.text();
  EXPECT_FALSE(workspace.overrun()) << kernel << " overran its workspace: " << instance.c.text();
  return out;
}

void check(const CsrCase& c) {
  CsrInstance instance(c);
  const Executor serial = Executor::serial(), threads = testing::backwards(3);
  for (const Candidate& each : CsrLinear::plan(instance.problem(), serial, "reference")->candidates) {
    if (!each.refusal.empty()) continue;
    const Matrix out = run(instance, each.kernel, serial);
    instance.expect_accurate(each.kernel, out);
    EXPECT_EQ(out.bytes, run(instance, each.kernel, threads).bytes) << each.kernel << " " << c.text();
  }
}

TEST(CsrProducts, AreAccurateForEverySize) {
  for (DType dtype : kDTypes)
    for (Direction direction : {Direction::forward, Direction::dx, Direction::dw})
      for (auto [rows, cols] : {std::pair<std::int64_t, std::int64_t>{1, 4}, {7, 1}, {37, 130}, {120, 37}})
        for (std::int64_t m : {1, 2, 8, 17, 33, 70, 129}) check({dtype, m, rows, cols, direction});
}

TEST(CsrProducts, HaveAnEpilogue) {
  for (DType dtype : kDTypes)
    for (Activation activation : testing::activations())
      for (std::int64_t m : {1, 12}) {
        CsrCase c{dtype, m, 61, 80};
        c.activation = activation, c.bias = true, c.residual = m > 1 || activation == Activation::none;
        check(c);
      }
}

TEST(CsrProducts, AddToAGradient) {
  for (DType dtype : kDTypes)
    for (std::int64_t m : {1, 70}) {
      CsrCase c{dtype, m, 61, 80, Direction::dw};
      c.accumulate = true;
      check(c);
    }
}

}  // namespace
}  // namespace sparseloom
