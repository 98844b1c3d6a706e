// The products of CSR weights on the CPU, by every row that does not refuse, against fp64.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "core/backwards.h"
#include "core/rng.h"
#include "kernels/case.h"
#include "kernels/matrix.h"
#include "sparseloom/csr_linear.h"

namespace sparseloom {
namespace {

using testing::Matrix;

constexpr DType kDTypes[] = {DType::f32, DType::f16, DType::bf16};

struct CsrCase {
  DType dtype;
  std::int64_t m, rows, cols;
  Direction direction = Direction::forward;
  bool bias = false, residual = false, accumulate = false;
  Activation activation = Activation::none;

  std::string text() const {
    return std::string(name_of(direction)) + " " + name_of(dtype) + " m=" + std::to_string(m) + " [" +
           std::to_string(rows) + ", " + std::to_string(cols) + "]";
  }
};

/// A random index with empty rows and one full row, operands with poison around them, and the answer.
struct CsrInstance {
  CsrCase c;
  std::vector<std::int32_t> crow{0}, col;
  CsrView w;
  Matrix values, a, b, bias, residual;
  std::vector<double> exact, norm;

  explicit CsrInstance(const CsrCase& given)
      : c(given),
        values(c.dtype, 1, 0, 0),
        a(c.dtype, c.m, c.direction == Direction::forward ? c.cols : c.rows, 3),
        b(c.dtype, c.m, c.cols, 1),
        bias(c.dtype, 1, c.rows, 0),
        residual(c.dtype, c.m, c.rows, 5) {
    core::Rng rng(static_cast<std::uint64_t>(c.m * 7919 + c.rows * 31 + c.cols));
    for (std::int64_t row = 0; row < c.rows; ++row) {
      const double share = row == c.rows / 2 ? 1 : row % 7 == 3 ? 0 : 0.3;
      for (std::int64_t i = 0; i < c.cols; ++i)
        if (rng.uniform() < share) col.push_back(static_cast<std::int32_t>(i));
      crow.push_back(static_cast<std::int32_t>(col.size()));
    }
    w.rows = c.rows, w.cols = c.cols, w.stored = static_cast<std::int64_t>(col.size());
    w.crow = crow.data(), w.col = col.data();
    Csr::validate("test", w);
    values = Matrix(c.dtype, 1, w.stored, 0);
    for (Matrix* matrix : {&values, &a, &b, &bias, &residual})
      for (std::int64_t r = 0; r < matrix->rows; ++r)
        for (std::int64_t i = 0; i < matrix->cols; ++i) matrix->set(r, i, 2 * rng.uniform() - 1);
    answer();
  }

  std::int64_t out_rows() const { return c.direction == Direction::dw ? 1 : c.m; }
  std::int64_t out_cols() const {
    return c.direction == Direction::forward ? c.rows : c.direction == Direction::dx ? c.cols : w.stored;
  }

  void answer() {
    const auto size = static_cast<std::size_t>(out_rows() * out_cols());
    exact.assign(size, c.accumulate ? 0.5 : 0), norm.assign(size, c.accumulate ? 0.5 : 0);
    const auto add = [&](std::int64_t at, double term) {
      exact[static_cast<std::size_t>(at)] += term, norm[static_cast<std::size_t>(at)] += std::abs(term);
    };
    for (std::int64_t t = 0; t < c.m; ++t)
      for (std::int64_t row = 0; row < c.rows; ++row) {
        Csr::for_each_in_row(w, row, [&](std::int64_t i, std::int64_t slot) {
          switch (c.direction) {
            case Direction::forward: return add(t * c.rows + row, a.at(t, i) * values.at(0, slot));
            case Direction::dx: return add(t * c.cols + i, a.at(t, row) * values.at(0, slot));
            case Direction::dw: return add(slot, a.at(t, row) * b.at(t, i));
          }
        });
        if (c.direction != Direction::forward) continue;
        const auto at = static_cast<std::size_t>(t * c.rows + row);
        if (c.bias) add(t * c.rows + row, bias.at(0, row));
        norm[at] *= testing::slope(c.activation, exact[at]);
        exact[at] = testing::activate(c.activation, exact[at]);
        if (c.residual) add(t * c.rows + row, residual.at(t, row));
      }
  }

  CsrLinear::Problem problem() const {
    CsrLinear::Problem problem = CsrLinear::describe(w, c.direction, c.dtype, c.m);
    problem.bias = c.bias, problem.residual = c.residual, problem.activation = c.activation;
    return problem;
  }

  Matrix run(const std::string& kernel, const Executor& executor) {
    const auto plan = CsrLinear::plan(problem(), executor, kernel);
    Matrix out(c.accumulate ? DType::f32 : c.dtype, out_rows(), out_cols(),
               c.direction == Direction::dw ? 0 : 2);
    for (std::int64_t i = 0; c.accumulate && i < out.cols; ++i) out.set(0, i, 0.5);
    MatmulArgs args;
    args.a = a.data(), args.a_stride = a.stride, args.b = b.data(), args.b_stride = b.stride;
    args.values = values.data(), args.accumulate = c.accumulate;
    if (c.bias) args.bias = bias.data();
    if (c.residual) args.residual = residual.data(), args.residual_stride = residual.stride;
    args.out = out.data(), args.out_stride = out.stride;
    Workspace workspace;
    const auto lent = workspace.at_least(plan->workspace_bytes + testing::kGuard);
    std::fill(lent.begin(), lent.end(), testing::kPoison);
    CsrLinear::run(*plan, args, w, lent.first(plan->workspace_bytes), executor);
    EXPECT_TRUE(out.padding_untouched()) << kernel << " wrote outside the output: " << c.text();
    EXPECT_TRUE(std::all_of(lent.begin() + static_cast<std::ptrdiff_t>(plan->workspace_bytes), lent.end(),
                            [](std::byte byte) { return byte == testing::kPoison; }))
        << kernel << " overran its workspace: " << c.text();
    return out;
  }

  /// Sums in fp32, whose order is free, and one rounding.
  void expect_accurate(const std::string& kernel, const Matrix& out) const {
    const double rounding = out.dtype == DType::bf16 ? 0x1p-8 : out.dtype == DType::f16 ? 0x1p-11 : 0x1p-24;
    for (std::int64_t r = 0; r < out.rows; ++r)
      for (std::int64_t i = 0; i < out.cols; ++i) {
        const auto at = static_cast<std::size_t>(r * out.cols + i);
        const double allowed = 1.001 * rounding * std::abs(exact[at]) + 0x1p-20 * norm[at] + 0x1p-25;
        ASSERT_LE(std::abs(out.at(r, i) - exact[at]), allowed)
            << kernel << " " << c.text() << " at " << r << ", " << i;
      }
  }
};

void check(const CsrCase& c) {
  CsrInstance instance(c);
  const Executor serial = Executor::serial(), threads = testing::backwards(3);
  for (const Candidate& each : CsrLinear::plan(instance.problem(), serial, "reference")->candidates) {
    if (!each.refusal.empty()) continue;
    const Matrix out = instance.run(each.kernel, serial);
    instance.expect_accurate(each.kernel, out);
    EXPECT_EQ(out.bytes, instance.run(each.kernel, threads).bytes) << each.kernel << " " << c.text();
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
