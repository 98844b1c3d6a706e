// The scaled product at the op boundary: what is asked of the caller, and that the plan says what it is.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "core/expect_error.h"
#include "sparseloom/ops.h"

namespace sparseloom {
namespace {

using test::expect_error;

struct Call {
  BsrMatrix w;
  std::vector<std::int8_t> x = std::vector<std::int8_t>(5 * 32, 3);
  std::vector<float> y = std::vector<float>(5 * 16), x_scale = std::vector<float>(5, 0.5f),
                     w_scale = std::vector<float>(16, 2.0f);
  ScaledProblem problem;
  Workspace workspace;

  Call()
      : w(BlockIndex(16, 32, {8, 16}, std::vector<std::int32_t>{0, 2, 3}, std::vector<std::int32_t>{0, 1, 1}),
          DType::i8) {
    auto* const values = static_cast<std::int8_t*>(w.values());
    for (int i = 0; i < 3 * 8 * 16; ++i) values[i] = 1;
    problem = describe_scaled(w, DType::f32, 5);
  }
  void run(const Scales& scales) { run(scales, {x.data(), DType::i8, 5, 32, 32}, view(y.data(), 5, 16)); }
  void run(const Scales& scales, const ConstMatrixView& in, const MatrixView& out) {
    linear(*make_plan(problem, w, Executor::serial(), "reference"), in, w, scales, nullptr, out, workspace,
           Executor::serial());
  }
};

TEST(ScaledLinear, MultipliesBySumsAndScales) {
  Call call;
  call.run({call.x_scale, call.w_scale});
  EXPECT_EQ(call.y[0], 96.0f);  // two blocks of 16 inputs
  EXPECT_EQ(call.y[15], 48.0f);
  const float one = 0.25f;
  call.run({{&one, 1}, {&one, 1}});
  EXPECT_EQ(call.y[0], 6.0f);
}

TEST(ScaledLinear, PlanNamesBothDtypes) {
  Call call;
  call.problem.out = DType::bf16;
  const std::string text = make_plan(call.problem, call.w, Executor::serial(), "reference")->describe();
  EXPECT_NE(text.find("forward int8 to bf16 m=5"), std::string::npos) << text;
  EXPECT_NE(text.find("not dense: supports no 8-bit dtype but float8_e4m3fn, the dtype is int8"),
            std::string::npos)
      << text;
}

// Each problem names the other where its dtype is the other's.
TEST(ScaledLinear, EachVerbRefusesTheDtypesOfTheOther) {
  Call call;
  call.problem.dtype = DType::bf16;
  expect_error("plan", {"ScaledProblem of i8 or f8e4m3", "bf16", "without Scales"},
               [&] { make_plan(call.problem, call.w, Executor::serial()); });
  expect_error("plan", {"Problem of f32, f16, bf16 or f64", "int8", "plan a ScaledProblem"},
               [&] { make_plan(describe(call.w, Direction::forward, 5), call.w, Executor::serial()); });
  for (const Direction direction : {Direction::dx, Direction::dw})
    expect_error("plan", {"forward", "int8", "no gradients"},
                 [&] { make_plan(describe(call.w, direction, 5), call.w, Executor::serial()); });
}

TEST(ScaledLinear, RefusesWhatDoesNotFit) {
  Call call;
  const Scales good{call.x_scale, call.w_scale};
  for (const DType out : {DType::f16, DType::f64, DType::i8}) {
    ScaledProblem other = call.problem;
    other.out = out;
    expect_error("plan", {"bf16 or f32", name_of(out)},
                 [&] { make_plan(other, call.w, Executor::serial()); });
  }
  expect_error("linear", {"x's scales", "1 or 5", "token"}, [&] { call.run({}); });
  expect_error("linear", {"1 or 5", "got 4"}, [&] {
    call.run({std::span(call.x_scale).first(4), call.w_scale});
  });
  expect_error("linear", {"w's scales", "1 or 16", "got 8"}, [&] {
    call.run({call.x_scale, std::span(call.w_scale).first(8)});
  });
  expect_error("linear", {"x's scales", "null"}, [&] {
    call.run({{static_cast<const float*>(nullptr), 5}, call.w_scale});
  });
  expect_error("linear", {"x of dtype int8", "f32"},
               [&] { call.run(good, view(call.y.data(), 5, 32, 32), view(call.y.data(), 5, 16)); });
  expect_error("linear", {"y of dtype f32", "bf16"}, [&] {
    call.run(good, {call.x.data(), DType::i8, 5, 32, 32}, {call.y.data(), DType::bf16, 5, 16, 16});
  });
}

TEST(ScaledLinear, Int8SumsThatCouldOverflowAreRefused) {
  ScaledProblem p;
  p.dtype = DType::i8, p.m = 1, p.rows = 8, p.cols = 131072, p.block = {8, 8};
  std::vector<std::int32_t> crow{0, 0};
  const IndexView index{8, 131072, {8, 8}, 0, crow.data(), nullptr};
  expect_error("plan", {"131071", "131072"}, [&] { make_plan(p, index, Executor::serial()); });
  p.dtype = DType::f8e4m3;
  EXPECT_EQ(make_plan(p, index, Executor::serial(), "reference")->kernel_name, "reference");
}

// The only kernel for f8 on a CPU: nobody gets it by accident.
TEST(ScaledLinear, TheReferenceRunsWhenItIsNamed) {
  Call call;
  call.problem.dtype = DType::f8e4m3;
  expect_error("plan", {"reference: multiplies float8_e4m3fn", "only by name"},
               [&] { make_plan(call.problem, call.w, Executor::serial()); });
  EXPECT_EQ(make_plan(call.problem, call.w, Executor::serial(), "reference")->kernel_name, "reference");
}

TEST(ScaledLinear, TheGemmThatAPlanCountsOnHasToBeLentToTheCall) {
  Call call;
  call.problem.dtype = DType::f8e4m3;
  Executor lends = Executor::serial();
  lends.gemm = [](void*, const Gemm&) {};
  EXPECT_FALSE(make_plan(call.problem, call.w.index().view(), lends, "reference")->problem.can_gemm);
  lends.scaled_gemm = [](void*, const ScaledGemm&) {};
  const auto plan = make_plan(call.problem, call.w.index().view(), lends, "reference");
  EXPECT_TRUE(plan->problem.can_gemm);
  EXPECT_NE(plan->describe().find("not dense: multiplies float8_e4m3fn on CUDA devices only"),
            std::string::npos)
      << plan->describe();
  lends.scaled_gemm = nullptr;
  expect_error("linear", {"lends a GEMM", "none"}, [&] {
    linear(*plan, {call.x.data(), DType::f8e4m3, 5, 32, 32}, call.w.index().view(), call.w.values(),
           Scales{call.x_scale, call.w_scale}, nullptr, view(call.y.data(), 5, 16), {}, lends);
  });
}

TEST(ScaledLinear, StrictNamesTheReference) {
  Call call;
  call.problem.dtype = DType::f8e4m3, call.problem.strict = true;
  expect_error("plan", {"reference: strict forbids the reference kernel", "float8_e4m3fn"},
               [&] { make_plan(call.problem, call.w, Executor::serial()); });
}

}  // namespace
}  // namespace sparseloom
