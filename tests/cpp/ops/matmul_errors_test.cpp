// The public calls: what a plan promises, and errors that name what is wrong.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/expect_error.h"
#include "ops/matmul_case.h"

namespace sparseloom {
namespace {

TEST(Plan, StrictForbidsDenseAndReference) {
  Case c;
  Problem p = c.problem(Direction::forward);
  p.strict = true;
  for (const char* kernel : {"dense", "reference"}) {
    try {
      c.plan(p, kernel);
      FAIL() << kernel;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(std::string(kernel) + ": strict forbids"), std::string::npos)
          << error.what();
    }
  }
}

TEST(Plan, IsCachedByProblem) {
  Case c;
  const auto plan = c.plan(c.problem(Direction::dx), "");
  EXPECT_EQ(c.plan(c.problem(Direction::dx), ""), plan);
  EXPECT_NE(c.plan(c.problem(Direction::dw), ""), plan);
}

// Facts and alignment choose among CUDA kernels. On the CPU they would only double the plans.
TEST(Plan, OnTheCpuKnowsNoFacts) {
  Case c;
  Problem p = c.problem(Direction::forward);
  const auto plan = c.plan(p, "");
  p.facts = Facts::of_digest(3);
  p.aligned = false;
  EXPECT_EQ(c.plan(p, ""), plan);
}

// An index is looked at once for each of its addresses and contents, whatever plan it asks for.
TEST(Plan, AnIndexRewrittenInPlaceIsValidatedAgain) {
  Case c;
  const IndexView view = c.index.view();
  std::vector<std::int32_t> crow(view.crow, view.crow + view.block_rows() + 1),
      col(view.col, view.col + view.blocks);
  const IndexView own{view.rows, view.cols, view.block, view.blocks, crow.data(), col.data()};
  const Problem p = c.problem(Direction::forward);
  const auto plan = make_plan(p, own, c.executor);
  col.back() = 1 << 20;
  test::expect_error("plan", {"col"}, [&] { make_plan(p, own, c.executor); });
  col.back() = view.col[view.blocks - 1];
  EXPECT_EQ(make_plan(p, own, c.executor), plan);
}

TEST(Errors, NameWhatIsWrong) {
  Case c;
  Problem p = c.problem(Direction::forward);
  const auto plan = c.plan(p, "reference");
  std::vector<float> y(c.m * c.rows);
  const MatrixView out{y.data(), DType::f32, c.m, c.rows, c.rows};
  const auto run = [&](ConstMatrixView x, MatrixView result, const void* bias, std::span<std::byte> scratch,
                       const Plan& with) {
    return error_of(
        [&] { linear(with, x, c.index.view(), c.values.data(), bias, result, scratch, c.executor); });
  };
  const ConstMatrixView x{c.x.data(), DType::f32, c.m, c.cols, c.cols};
  EXPECT_EQ(run(x, out, nullptr, {}, *plan), "no error");
  EXPECT_EQ(run({c.x.data(), DType::f32, c.m, 23, 23}, out, nullptr, {}, *plan),
            "[linear] expected x of shape [5, 24], got [5, 23]; pass the matrix that the plan was made for");
  EXPECT_EQ(run({c.x.data(), DType::bf16, c.m, c.cols, c.cols}, out, nullptr, {}, *plan),
            "[linear] expected x of dtype f32, got bf16; convert it, or plan for its dtype");
  EXPECT_NE(
      run({c.x.data(), DType::f32, c.m, c.cols, 8}, out, nullptr, {}, *plan).find("row stride >= 24, got 8"),
      std::string::npos);
  EXPECT_NE(run({nullptr, DType::f32, c.m, c.cols, c.cols}, out, nullptr, {}, *plan)
                .find("memory behind x, got null"),
            std::string::npos);
  EXPECT_NE(run(x, out, c.bias.data(), {}, *plan).find("expected no bias, as planned, got one"),
            std::string::npos);
  const Addends both(nullptr, out);
  const auto with = [&](const Addends& addends, const Plan& planned) {
    return error_of(
        [&] { linear(planned, x, c.index.view(), c.values.data(), addends, out, {}, c.executor); });
  };
  EXPECT_NE(with(both, *plan).find("expected no residual, as planned, got one"), std::string::npos);
  Problem residual = p;
  residual.residual = true;
  const auto adding = c.plan(residual, "reference");
  EXPECT_NE(with(nullptr, *adding).find("expected a residual, as planned, got none"), std::string::npos);
  EXPECT_NE(with({nullptr, {y.data(), DType::f32, c.m, 39, 39}}, *adding)
                .find("residual of shape [5, 40], got [5, 39]"),
            std::string::npos);
  EXPECT_NE(
      with({nullptr, {y.data(), DType::bf16, c.m, 40, 40}}, *adding).find("residual of dtype f32, got bf16"),
      std::string::npos);
  residual.direction = Direction::dx;
  EXPECT_NE(error_of([&] {
              c.plan(residual, "");
            }).find("a residual on forward of f32, f16, bf16 or f64 only, got dx of f32"),
            std::string::npos);
  const auto dense = c.plan(p, "dense");
  EXPECT_NE(run(x, out, nullptr, {}, *dense).find("3840 bytes of workspace, aligned to 64, got 0 bytes"),
            std::string::npos);
  const std::span<std::byte> null(static_cast<std::byte*>(nullptr), dense->workspace_bytes);
  EXPECT_NE(run(x, out, nullptr, null, *dense).find("3840 bytes of workspace"), std::string::npos);
  Scratch scratch(dense->workspace_bytes + 64);
  EXPECT_NE(run(x, out, nullptr, scratch.span().subspan(4), *dense).find("at offset 4"), std::string::npos);
  EXPECT_NE(run(x, out, nullptr, {}, *c.plan(c.problem(Direction::dx), "reference"))
                .find("a plan for forward, got dx"),
            std::string::npos);

  p.blocks += 1;
  EXPECT_NE(error_of([&] { c.plan(p, ""); }).find("[plan] expected a problem of the index's shape"),
            std::string::npos);
  p = c.problem(Direction::dw, true);
  EXPECT_NE(error_of([&] { c.plan(p, ""); }).find("bias and activation on forward only"), std::string::npos);
  p = c.problem(Direction::forward);
  p.m = -1;
  EXPECT_NE(error_of([&] { c.plan(p, ""); }).find("m >= 0, got m = -1"), std::string::npos);
}

}  // namespace
}  // namespace sparseloom
