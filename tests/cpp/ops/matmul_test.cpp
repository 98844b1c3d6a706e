// The public calls: error cases, the reference and dense candidates against plain loops, and the rules a plan
// promises.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "core/half.h"
#include "kernels/scalar.h"
#include "sparseloom/sparseloom.h"

namespace sparseloom {
namespace {

// A GEMM as a host would lend it, in obvious loops.
void plain_gemm(void* calls, const Gemm& g) {
  ++*static_cast<int*>(calls);
  const std::int64_t depth = g.a_transposed ? g.a.rows : g.a.cols;
  for (std::int64_t i = 0; i < g.c.rows; ++i)
    for (std::int64_t j = 0; j < g.c.cols; ++j) {
      double sum = g.bias ? kernels::load(g.c.dtype, g.bias, j) : 0;
      for (std::int64_t k = 0; k < depth; ++k)
        sum += kernels::load(g.a.dtype, g.a.data, g.a_transposed ? k * g.a.stride + i : i * g.a.stride + k) *
               kernels::load(g.b.dtype, g.b.data, g.b_transposed ? j * g.b.stride + k : k * g.b.stride + j);
      kernels::store(g.c.dtype, g.c.data, i * g.c.stride + j, sum);
    }
}

std::vector<float> integers(std::size_t count, int seed) {
  std::vector<float> data(count);
  for (std::size_t i = 0; i < count; ++i)
    data[i] = static_cast<float>((static_cast<int>(i) * 7 + seed) % 5 - 2);
  return data;
}

struct Case {
  std::int64_t m = 5, rows = 40, cols = 24;
  BlockIndex index{pattern::random(40, 24, {16, 8}, 0.5, 3)};
  std::vector<float> values = integers(static_cast<std::size_t>(index.view().blocks) * 128, 1);
  std::vector<float> dense = std::vector<float>(40 * 24);
  std::vector<float> x = integers(5 * 24, 2), dy = integers(5 * 40, 3), bias = integers(40, 4);
  int gemm_calls = 0;
  Executor executor;

  Case() {
    MatrixView w{dense.data(), DType::f32, rows, cols, cols};
    unpack(index.view(), values.data(), w);
    pack(w, index.view(), values.data());  // zeroes the padding
    executor = Executor::pool(2);
    executor.context = &gemm_calls;
    executor.parallel_for = nullptr;
    executor.gemm = plain_gemm;
  }

  Problem problem(Direction direction, bool with_bias = false,
                  Activation activation = Activation::none) const {
    Problem p;
    p.direction = direction;
    p.m = m;
    p.rows = rows;
    p.cols = cols;
    p.block = {16, 8};
    p.blocks = index.view().blocks;
    p.bias = with_bias;
    p.activation = activation;
    return p;
  }
  std::shared_ptr<const Plan> plan(const Problem& p, const std::string& kernel) {
    return make_plan(p, index.view(), index.version(), executor, kernel);
  }
};

struct Scratch {
  explicit Scratch(std::size_t bytes)
      : memory(static_cast<std::byte*>(std::aligned_alloc(64, (bytes + 127) / 64 * 64)), std::free),
        size(bytes) {}
  std::span<std::byte> span() { return {memory.get(), size}; }
  std::unique_ptr<std::byte, decltype(&std::free)> memory;
  std::size_t size;
};

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
  ASSERT_NE(one, candidates.end());
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

TEST(Plan, IsCachedByVersionAndProblem) {
  Case c;
  const auto plan = c.plan(c.problem(Direction::dx), "");
  EXPECT_EQ(c.plan(c.problem(Direction::dx), ""), plan);
  EXPECT_NE(make_plan(c.problem(Direction::dx), c.index.view(), c.index.version() ^ 1, c.executor), plan);
  EXPECT_EQ(plan->pattern_version, c.index.version());
}

template <class Call>
std::string error_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
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
  EXPECT_NE(error_of([&] {
              run(rounded);
            }).find("dtype f32, which accumulate adds to, got another pattern, or bf16"),
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
