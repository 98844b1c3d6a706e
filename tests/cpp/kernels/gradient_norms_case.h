// Operands of block_gradient_norms with their norms in fp64.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "core/check.h"
#include "core/rng.h"
#include "kernels/matrix.h"
#include "sparseloom/layout.h"

namespace sparseloom::testing {

inline constexpr BlockNorm kNorms[] = {BlockNorm::l1, BlockNorm::l2, BlockNorm::max};

struct NormsShape {
  std::int64_t m, rows, cols;
  BlockShape block;
  std::int64_t padding;  // elements between rows, and before the first one
};

/// Numbers of few bits in [-2, 2), so that all dtypes hold them.
struct NormsCase {
  Matrix dy, x;
  BlockShape block;

  NormsCase(DType dtype, const NormsShape& s)
      : dy(dtype, s.m, s.rows, s.padding), x(dtype, s.m, s.cols, s.padding), block(s.block) {
    core::Rng rng(static_cast<std::uint64_t>(s.m * 31 + s.rows));
    for (Matrix* matrix : {&dy, &x})
      for (std::int64_t r = 0; r < matrix->rows; ++r)
        for (std::int64_t c = 0; c < matrix->cols; ++c)
          matrix->set(r, c, (static_cast<double>(rng.below(256)) - 128) / 64);
  }

  ConstMatrixView dy_view() { return {dy.data(), dy.dtype, dy.rows, dy.cols, dy.stride}; }
  ConstMatrixView x_view() { return {x.data(), x.dtype, x.rows, x.cols, x.stride}; }
  std::int64_t block_rows() const { return core::ceil_div(dy.cols, std::int64_t{block.rows}); }
  std::int64_t block_cols() const { return core::ceil_div(x.cols, std::int64_t{block.cols}); }
  std::size_t cells() const { return static_cast<std::size_t>(block_rows() * block_cols()); }

  /// The products are exact in fp32, and so are their sums over the tokens of a test: what may differ is the
  /// sum over a block's elements.
  void expect_close(const std::vector<float>& found, BlockNorm norm) const {
    std::vector<double> gradient(static_cast<std::size_t>(dy.cols * x.cols)), left(dy.cols), right(x.cols);
    for (std::int64_t t = 0; t < dy.rows; ++t) {
      for (std::int64_t o = 0; o < dy.cols; ++o) left[o] = dy.at(t, o);
      for (std::int64_t i = 0; i < x.cols; ++i) right[i] = x.at(t, i);
      for (std::int64_t o = 0; o < dy.cols; ++o)
        for (std::int64_t i = 0; i < x.cols; ++i) gradient[o * x.cols + i] += left[o] * right[i];
    }
    std::vector<double> wanted(cells());
    for (std::int64_t o = 0; o < dy.cols; ++o)
      for (std::int64_t i = 0; i < x.cols; ++i) {
        const double g = std::fabs(gradient[o * x.cols + i]);
        double& sum = wanted[o / block.rows * block_cols() + i / block.cols];
        sum = norm == BlockNorm::max ? std::fmax(sum, g) : sum + (norm == BlockNorm::l1 ? g : g * g);
      }
    ASSERT_EQ(found.size(), wanted.size());
    for (std::size_t b = 0; b < wanted.size(); ++b) {
      const double w = norm == BlockNorm::l2 ? std::sqrt(wanted[b]) : wanted[b];
      ASSERT_NEAR(found[b], w, 1e-5 * w + 1e-6) << "block " << b << " of " << dy.cols << " x " << x.cols;
    }
  }
};

}  // namespace sparseloom::testing
