#include "plan/select.h"

#include <gtest/gtest.h>

#include "sparseloom/error.h"

namespace sparseloom::plan {
namespace {

template <int us>
KernelInfo row(const char* name) {
  return {name,
          Side::any,
          runtime::Isa::generic,
          [](const Problem&, const Machine&) { return std::string(); },
          [](const Problem&, const Machine&) { return static_cast<double>(us); },
          [](const Problem&, const Machine&) { return std::size_t{us * 64}; }};
}

KernelInfo refusing(const char* name) {
  KernelInfo info = row<1>(name);
  info.refusal = [](const Problem& p, const Machine&) {
    return p.strict ? std::string("strict forbids it") : std::string("wrong moon");
  };
  return info;
}

TEST(Select, TakesTheFastestThatDoesNotRefuse) {
  const KernelInfo rows[] = {row<30>("slow"), refusing("best"), row<10>("fast"), row<10>("tie")};
  const Plan plan = select({}, rows, {});
  EXPECT_EQ(plan.kernel_name, "fast");  // the earlier row of a tie
  EXPECT_EQ(plan.kernel, 2);
  EXPECT_EQ(plan.workspace_bytes, 640u);
  ASSERT_EQ(plan.candidates.size(), 4u);
  EXPECT_EQ(plan.candidates[1].refusal, "wrong moon");
  const std::string text = plan.describe();
  EXPECT_NE(text.find("runs fast, predicted 10.0 us"), std::string::npos) << text;
  EXPECT_NE(text.find("not best: wrong moon"), std::string::npos) << text;
  EXPECT_NE(text.find("not slow: predicted 30.0 us"), std::string::npos) << text;
}

TEST(Select, ForcedRowWinsOverAFasterOne) {
  const KernelInfo rows[] = {row<30>("slow"), row<10>("fast")};
  EXPECT_EQ(select({}, rows, {}, "slow").kernel_name, "slow");
}

TEST(Select, EightBitOperandsGoToRowsThatTakeThem) {
  KernelInfo scaled = row<30>("scaled"), by_name = row<10>("by_name");
  scaled.scaled = by_name.scaled = by_name.scaled_by_name = true;
  const KernelInfo rows[] = {row<1>("floats"), scaled, by_name};
  Problem p;
  EXPECT_EQ(select(p, rows, {}).kernel_name, "floats");
  p.dtype = DType::i8;
  const Plan plan = select(p, rows, {});
  EXPECT_EQ(plan.kernel_name, "scaled");
  EXPECT_EQ(plan.candidates[0].refusal, "multiplies no 8-bit operands, the dtype is int8");
  EXPECT_NE(plan.candidates[2].refusal.find("only by name"), std::string::npos);
  EXPECT_EQ(select(p, rows, {}, "by_name").kernel_name, "by_name");
  EXPECT_EQ(select(Problem{}, rows, {}, "by_name").kernel_name, "by_name");
}

TEST(Select, MisalignedOperandsGoToRowsThatTakeThem) {
  KernelInfo always = row<1>("always"), dx_only = row<2>("dx_only");
  always.needs_aligned = [](const Problem&) { return Aligned::all; };
  dx_only.needs_aligned = [](const Problem& p) {
    return p.direction == Direction::dx ? Aligned::inputs : Aligned::none;
  };
  const KernelInfo rows[] = {always, dx_only, row<3>("any")};
  Problem p;
  EXPECT_EQ(select(p, rows, {}).kernel_name, "always");
  p.aligned = false;
  const Plan plan = select(p, rows, {});
  EXPECT_EQ(plan.kernel_name, "dx_only");
  EXPECT_NE(plan.candidates[0].refusal.find("multiples of 16 bytes"), std::string::npos);
  p.direction = Direction::dx;
  EXPECT_EQ(select(p, rows, {}).kernel_name, "any");
}

TEST(Select, NothingToRunNamesEveryRefusal) {
  const KernelInfo rows[] = {refusing("a"), refusing("b")};
  Problem strict;
  strict.strict = true;
  try {
    select(strict, rows, {});
    FAIL() << "expected Error";
  } catch (const Error& error) {
    EXPECT_EQ(error.op(), "plan");
    EXPECT_NE(error.actual().find("a: strict forbids it; b: strict forbids it"), std::string::npos)
        << error.what();
    EXPECT_NE(error.remedy().find("strict=False"), std::string::npos) << error.what();
  }
}

TEST(Select, ForcedRowThatRefusesOrDoesNotExistIsAnError) {
  const KernelInfo rows[] = {refusing("a"), row<1>("b")};
  EXPECT_THROW(select({}, rows, {}, "a"), Error);
  EXPECT_THROW(select({}, rows, {}, "nobody"), Error);
}

TEST(Select, RowsOfTheOtherSideAreRefusedWithoutBeingAsked) {
  KernelInfo on_cpu = row<10>("on_cpu"), on_cuda = row<10>("on_cuda");
  on_cpu.side = Side::cpu, on_cuda.side = Side::cuda;
  const KernelInfo rows[] = {on_cpu, on_cuda, row<99>("anywhere")};
  Problem problem;
  const Plan host = select(problem, rows, {});
  EXPECT_EQ(host.kernel_name, "on_cpu");
  EXPECT_EQ(host.candidates[1].refusal, "runs on CUDA devices, the operands are on the CPU");
  problem.device = 2;
  const Plan device = select(problem, rows, {});
  EXPECT_EQ(device.kernel_name, "on_cuda");
  EXPECT_EQ(device.candidates[0].refusal, "runs on the CPU, the operands are on cuda:2");
  EXPECT_TRUE(device.candidates[2].refusal.empty());
  EXPECT_THROW(select(problem, rows, {}, "on_cpu"), Error);
}

}  // namespace
}  // namespace sparseloom::plan
