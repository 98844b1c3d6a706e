// The public calls: the reference and dense candidates against plain loops, and sums into an fp32 gradient.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "ops/matmul_case.h"
#include "sparseloom/generic/half.h"

namespace sparseloom {
namespace {

class EveryKernel : public testing::TestWithParam<std::string> {};

TEST_P(EveryKernel, MultipliesSmallIntegersExactly) {
  Case c;
  const float poison = std::numeric_limits<float>::quiet_NaN();
  const auto refuses = [&](const Problem& p) {
    for (const Candidate& candidate : c.plan(p, "reference")->candidates)
      if (candidate.kernel == GetParam()) return !candidate.refusal.empty();
    return true;
  };
  const Problem forward = c.problem(Direction::forward, true, Activation::relu),
                dx = c.problem(Direction::dx), dw = c.problem(Direction::dw);
  int ran = 0;
  // `dense` measures the lent GEMM when it is forced, so it is asked for directly.
  if (GetParam() == "dense" || !refuses(forward)) {
    const auto plan = c.plan(forward, GetParam());
    Scratch scratch(plan->workspace_bytes);
    std::vector<float> y(c.m * 41, poison);
    linear(*plan, {c.x.data(), DType::f32, c.m, c.cols, c.cols}, c.index.view(), c.values.data(),
           c.bias.data(), {y.data(), DType::f32, c.m, c.rows, 41}, scratch.span(), c.executor);
    for (int t = 0; t < c.m; ++t) {
      for (int o = 0; o < c.rows; ++o) {
        float sum = c.bias[o];
        for (int i = 0; i < c.cols; ++i) sum += c.x[t * c.cols + i] * c.dense[o * c.cols + i];
        ASSERT_EQ(y[t * 41 + o], std::max(sum, 0.0f)) << t << ' ' << o;
      }
      ASSERT_TRUE(std::isnan(y[t * 41 + 40]));  // what lies between two rows is not ours
    }
    ++ran;
  }
  if (GetParam() == "dense" || !refuses(dx)) {
    const auto plan = c.plan(dx, GetParam());
    Scratch scratch(plan->workspace_bytes);
    std::vector<float> out(c.m * c.cols, poison);
    linear_dx(*plan, {c.dy.data(), DType::f32, c.m, c.rows, c.rows}, c.index.view(), c.index.transposed(),
              c.values.data(), {out.data(), DType::f32, c.m, c.cols, c.cols}, scratch.span(), c.executor);
    for (int t = 0; t < c.m; ++t)
      for (int i = 0; i < c.cols; ++i) {
        float sum = 0;
        for (int o = 0; o < c.rows; ++o) sum += c.dy[t * c.rows + o] * c.dense[o * c.cols + i];
        ASSERT_EQ(out[t * c.cols + i], sum) << t << ' ' << i;
      }
    ++ran;
  }
  if (!refuses(dw)) {
    const auto plan = c.plan(dw, GetParam());
    Scratch scratch(plan->workspace_bytes);
    std::vector<float> out(c.values.size(), poison), expected(c.values.size()), full(c.rows * c.cols);
    linear_dw(*plan, {c.dy.data(), DType::f32, c.m, c.rows, c.rows},
              {c.x.data(), DType::f32, c.m, c.cols, c.cols}, c.index.view(), out.data(), scratch.span(),
              c.executor);
    for (int o = 0; o < c.rows; ++o)
      for (int i = 0; i < c.cols; ++i)
        for (int t = 0; t < c.m; ++t) full[o * c.cols + i] += c.dy[t * c.rows + o] * c.x[t * c.cols + i];
    pack({full.data(), DType::f32, c.rows, c.cols, c.cols}, c.index.view(), expected.data());
    ASSERT_EQ(out, expected);
    ++ran;
  }
  // Every compiled-in kernel runs something here, or says why not.
  if (ran == 0) {
    const auto plan = c.plan(forward, "reference");
    for (const Candidate& candidate : plan->candidates)
      EXPECT_TRUE(candidate.kernel != GetParam() || !candidate.refusal.empty());
  }
}

TEST_P(EveryKernel, AddsAResidualExactly) {
  Case c;
  Problem p = c.problem(Direction::forward, true, Activation::relu);
  p.residual = true;
  const auto candidates = c.plan(p, "reference")->candidates;
  const auto one = std::find_if(candidates.begin(), candidates.end(),
                                [](const Candidate& row) { return row.kernel == GetParam(); });
  if (one == candidates.end()) return;  // a row of 8-bit products alone
  if (!one->refusal.empty() && GetParam() != "dense")
    return;  // what runs nowhere here said why; dense is measured when forced
  const auto plan = c.plan(p, GetParam());
  EXPECT_NE(plan->describe().find(" residual"), std::string::npos);
  EXPECT_NE(c.plan(c.problem(Direction::forward, true, Activation::relu), GetParam()), plan);
  Scratch scratch(plan->workspace_bytes);
  const std::vector<float> more = integers(c.m * 43, 5);
  std::vector<float> y(c.m * c.rows, std::numeric_limits<float>::quiet_NaN());
  linear(*plan, {c.x.data(), DType::f32, c.m, c.cols, c.cols}, c.index.view(), c.values.data(),
         {c.bias.data(), {more.data(), DType::f32, c.m, c.rows, 43}},
         {y.data(), DType::f32, c.m, c.rows, c.rows}, scratch.span(), c.executor);
  for (int t = 0; t < c.m; ++t)
    for (int o = 0; o < c.rows; ++o) {
      float sum = c.bias[o];
      for (int i = 0; i < c.cols; ++i) sum += c.x[t * c.cols + i] * c.dense[o * c.cols + i];
      ASSERT_EQ(y[t * c.rows + o], std::max(sum, 0.0f) + more[t * 43 + o]) << t << ' ' << o;
    }
}

INSTANTIATE_TEST_SUITE_P(Registry, EveryKernel, testing::ValuesIn(kernel_names()),
                         [](const auto& info) { return info.param; });

TEST(Dense, ScattersInEveryCallAndSpreadsNaN) {
  Case c;
  const auto plan = c.plan(c.problem(Direction::forward), "dense");
  EXPECT_NE(plan->describe().find("NaN in x spreads"), std::string::npos);
  const int measured = c.gemm_calls;
  Scratch scratch(plan->workspace_bytes);
  EXPECT_EQ(plan->workspace_bytes, 40u * 24 * 4);
  c.x[3] = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> y(c.m * c.rows);
  for (int call = 0; call < 2; ++call)
    linear(*plan, {c.x.data(), DType::f32, c.m, c.cols, c.cols}, c.index.view(), c.values.data(), nullptr,
           {y.data(), DType::f32, c.m, c.rows, c.rows}, scratch.span(), c.executor);
  EXPECT_EQ(c.gemm_calls, measured + 2);
  for (int o = 0; o < c.rows; ++o) EXPECT_TRUE(std::isnan(y[o]));
}

TEST(BsrMatrix, GoesThroughAllThreeProducts) {
  Case c;
  const BsrMatrix w = BsrMatrix::pack(view(c.dense.data(), c.rows, c.cols), c.index.pattern());
  Workspace workspace;
  std::vector<float> y(c.m * c.rows), dx(c.m * c.cols), expected_dx(c.m * c.cols);
  BsrMatrix dw(w.index(), w.dtype());
  const auto run = [&](Direction direction) { return make_plan(describe(w, direction, c.m), w, c.executor); };
  linear(*run(Direction::forward), view(c.x.data(), c.m, c.cols), w, nullptr, view(y.data(), c.m, c.rows),
         workspace, c.executor);
  linear_dx(*run(Direction::dx), view(c.dy.data(), c.m, c.rows), w, view(dx.data(), c.m, c.cols), workspace,
            c.executor);
  linear_dw(*run(Direction::dw), view(c.dy.data(), c.m, c.rows), view(c.x.data(), c.m, c.cols), dw, workspace,
            c.executor);
  std::vector<float> dense_dw(c.rows * c.cols);
  dw.unpack(view(dense_dw.data(), c.rows, c.cols));
  for (int t = 0; t < c.m; ++t)
    for (int o = 0; o < c.rows; ++o) {
      float sum = 0;
      for (int i = 0; i < c.cols; ++i) {
        sum += c.x[t * c.cols + i] * c.dense[o * c.cols + i];
        expected_dx[t * c.cols + i] += c.dy[t * c.rows + o] * c.dense[o * c.cols + i];
      }
      ASSERT_EQ(y[t * c.rows + o], sum);
    }
  EXPECT_EQ(dx, expected_dx);
  for (int o = 0; o < c.rows; ++o)
    for (int i = 0; i < c.cols; ++i) {
      float sum = 0;
      for (int t = 0; t < c.m; ++t) sum += c.dy[t * c.rows + o] * c.x[t * c.cols + i];
      ASSERT_EQ(dense_dw[o * c.cols + i], c.index.pattern().test(o / 16, i / 8) ? sum : 0);
    }
  BsrMatrix other(BlockIndex(pattern::full(c.rows, c.cols, {16, 8})), DType::f32);
  EXPECT_THROW(linear_dw(*run(Direction::dw), view(c.dy.data(), c.m, c.rows), view(c.x.data(), c.m, c.cols),
                         other, workspace, c.executor),
               Error);
}

// dw that is added: fp32 whatever the operands are, said by the plan and refused where it makes no sense.
TEST(Accumulate, AddsToFp32AndSaysSo) {
  Case c;
  Problem p = c.problem(Direction::dw);
  p.accumulate = true;
  const auto plan = c.plan(p, "");
  EXPECT_NE(plan, c.plan(c.problem(Direction::dw), ""));
  EXPECT_NE(plan->describe().find(" accumulate threads="), std::string::npos) << plan->describe();
  Scratch scratch(plan->workspace_bytes);
  const auto dy = view(c.dy.data(), c.m, c.rows), x = view(c.x.data(), c.m, c.cols);
  std::vector<float> added(c.values.size(), 100.0f), dw(c.values.size());
  for (int call = 0; call < 2; ++call)
    linear_dw(*plan, dy, x, c.index.view(), added.data(), scratch.span(), c.executor);
  const auto written = c.plan(c.problem(Direction::dw), "reference");
  linear_dw(*written, dy, x, c.index.view(), dw.data(), {}, c.executor);
  for (std::size_t i = 0; i < dw.size(); ++i) ASSERT_EQ(added[i], 100 + 2 * dw[i]) << i;

  p.m = 0;
  std::vector<float> same(c.values.size(), -0.0f);
  linear_dw(*c.plan(p, ""), view(c.dy.data(), 0, c.rows), view(c.x.data(), 0, c.cols), c.index.view(),
            same.data(), scratch.span(), c.executor);
  for (const float value : same) ASSERT_TRUE(std::signbit(value));
}

TEST(Accumulate, IsRefusedBesideDwOfFloats) {
  Case c;
  for (const Direction direction : {Direction::forward, Direction::dx}) {
    Problem p = c.problem(direction);
    p.accumulate = true;
    EXPECT_NE(error_of([&] { c.plan(p, ""); })
                  .find("accumulate, into fp32, on dw of f32, f16 or bf16 only, got " +
                        std::string(name_of(direction)) + " of f32"),
              std::string::npos);
  }
  Problem p = c.problem(Direction::dw);
  p.accumulate = true, p.dtype = DType::f64;
  EXPECT_NE(error_of([&] { c.plan(p, ""); }).find("got dw of f64"), std::string::npos);
}

TEST(Accumulate, ABsrMatrixToAddToIsFp32) {
  Case c;
  std::vector<core::Bf16> dy, x;
  for (const float value : c.dy) dy.push_back(core::to_bf16(value));
  for (const float value : c.x) x.push_back(core::to_bf16(value));
  BsrMatrix dw(c.index, DType::f32), rounded(c.index, DType::bf16);
  Problem p = c.problem(Direction::dw);
  p.dtype = DType::bf16, p.accumulate = true;
  const auto plan = c.plan(p, "");
  Workspace workspace;
  const auto run = [&](BsrMatrix& into) {
    linear_dw(*plan, {dy.data(), DType::bf16, c.m, c.rows, c.rows},
              {x.data(), DType::bf16, c.m, c.cols, c.cols}, into, workspace, c.executor);
  };
  run(dw);
  run(dw);
  std::vector<float> sums(c.rows * c.cols);
  dw.unpack(view(sums.data(), c.rows, c.cols));
  for (int o = 0; o < c.rows; ++o)
    for (int i = 0; i < c.cols; ++i) {
      float sum = 0;
      for (int t = 0; t < c.m; ++t) sum += c.dy[t * c.rows + o] * c.x[t * c.cols + i];
      ASSERT_EQ(sums[o * c.cols + i], c.index.pattern().test(o / 16, i / 8) ? 2 * sum : 0);
    }
  EXPECT_NE(error_of([&] { run(rounded); }).find("dtype f32, which accumulate adds to, got bf16"),
            std::string::npos);
}

TEST(Info, IsJsonThatNamesEveryKernel) {
  const std::string info = info_json();
  for (const std::string& name : kernel_names()) EXPECT_NE(info.find('"' + name + '"'), std::string::npos);
  EXPECT_NE(info.find("\"isa_active\""), std::string::npos);
  EXPECT_NE(info.find("\"cuda\""), std::string::npos);
}

}  // namespace
}  // namespace sparseloom
