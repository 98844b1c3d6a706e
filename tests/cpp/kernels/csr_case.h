// A product of CSR weights as the tests of its kernels see it: a random index, operands, and the answer in
// fp64.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "core/rng.h"
#include "kernels/case.h"
#include "kernels/matrix.h"
#include "sparseloom/csr_linear.h"

namespace sparseloom::testing {

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
  std::vector<std::int32_t> crow{0}, col, ccol, row, slot;
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
    crow.shrink_to_fit(), col.shrink_to_fit();
    w.rows = c.rows, w.cols = c.cols, w.stored = static_cast<std::int64_t>(col.size());
    w.crow = crow.data(), w.col = col.data();
    Csr::validate("test", w);
    by_column();
    values = Matrix(c.dtype, 1, w.stored, 0);
    for (Matrix* matrix : {&values, &a, &b, &bias, &residual})
      for (std::int64_t r = 0; r < matrix->rows; ++r)
        for (std::int64_t i = 0; i < matrix->cols; ++i) matrix->set(r, i, 2 * rng.uniform() - 1);
    answer();
  }

  void by_column() {
    ccol.assign(static_cast<std::size_t>(c.cols) + 1, 0);
    for (const std::int32_t i : col) ++ccol[static_cast<std::size_t>(i) + 1];
    std::partial_sum(ccol.begin(), ccol.end(), ccol.begin());
    row.resize(col.size()), slot.resize(col.size());
    std::vector<std::int32_t> next = ccol;
    for (std::int64_t r = 0; r < c.rows; ++r)
      Csr::for_each_in_row(w, r, [&](std::int64_t i, std::int64_t at) {
        const auto place = static_cast<std::size_t>(next[static_cast<std::size_t>(i)]++);
        row[place] = static_cast<std::int32_t>(r), slot[place] = static_cast<std::int32_t>(at);
      });
    w.ccol = ccol.data(), w.row = row.data(), w.slot = slot.data();
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

  /// What the output holds before the call: poison, or the sums that dW is added to.
  Matrix output() const {
    Matrix out(c.accumulate ? DType::f32 : c.dtype, out_rows(), out_cols(),
               c.direction == Direction::dw ? 0 : 2);
    for (std::int64_t i = 0; c.accumulate && i < out.cols; ++i) out.set(0, i, 0.5);
    return out;
  }

  CsrLinear::Problem problem() const {
    CsrLinear::Problem problem = CsrLinear::describe(w, c.direction, c.dtype, c.m);
    problem.bias = c.bias, problem.residual = c.residual, problem.activation = c.activation;
    return problem;
  }

  /// Sums in fp32, whose order is free, and one rounding. `function`: relative error of the activation.
  void expect_accurate(const std::string& kernel, const Matrix& out, double function = 0) const {
    const double rounding = out.dtype == DType::bf16 ? 0x1p-8 : out.dtype == DType::f16 ? 0x1p-11 : 0x1p-24;
    for (std::int64_t r = 0; r < out.rows; ++r)
      for (std::int64_t i = 0; i < out.cols; ++i) {
        const auto at = static_cast<std::size_t>(r * out.cols + i);
        const double allowed =
            (1.001 * rounding + function) * std::abs(exact[at]) + 0x1p-20 * norm[at] + 0x1p-25;
        ASSERT_LE(std::abs(out.at(r, i) - exact[at]), allowed)
            << kernel << " " << c.text() << " at " << r << ", " << i;
      }
  }
};

}  // namespace sparseloom::testing
