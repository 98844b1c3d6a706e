// One convolution of small integers on the CPU: its operands, its answer by the definition in fp64, and an
// executor that lends a convolution.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "core/backwards.h"
#include "kernels/matrix.h"
#include "sparseloom/conv_ops.h"
#include "sparseloom/error.h"

namespace sparseloom::testing {

struct CpuConvCase {
  std::vector<ConvWindow> axes;
  std::int64_t images = 2, rows = 40, cols = 40;
  BlockShape block{16, 16};
  double density = 0.5;
  bool bias = false, empty = false;     // empty: block row 1 and block column 1 store nothing
  bool relu = false, residual = false;  // of forward
  std::int64_t padding = 0;             // elements behind each pixel
};

class CpuConv {
 public:
  CpuConv(const CpuConvCase& c, DType dtype, Direction direction)
      : c_(c),
        dtype_(dtype),
        direction_(direction),
        shape_(conv_shape("test", c.images, c.axes)),
        x_(dtype, shape_.in_pixels(), c.cols, c.padding),
        dy_(dtype, shape_.out_pixels(), c.rows, c.padding),
        residual_(dtype, shape_.out_pixels(), c.rows, c.padding),
        bias_(dtype, 1, direction == Direction::dx ? c.cols : c.rows, 0) {
    const std::int64_t block_rows = (c.rows + c.block.rows - 1) / c.block.rows,
                       block_cols = (c.cols + c.block.cols - 1) / c.block.cols;
    crow_.push_back(0);
    for (std::int64_t r = 0; r < block_rows; ++r) {
      for (std::int64_t k = 0; k < block_cols; ++k)
        if (!(c.empty && (r == 1 || k == 1)) && random_() % 1000 < 1000 * c.density)
          col_.push_back(static_cast<std::int32_t>(k));
      crow_.push_back(static_cast<std::int32_t>(col_.size()));
    }
    crow_.shrink_to_fit(), col_.shrink_to_fit();
    index_ = {c.rows, c.cols, c.block, static_cast<std::int64_t>(col_.size()), crow_.data(), col_.data()};
    ccol_.resize(static_cast<std::size_t>(block_cols + 1)), row_.resize(col_.size()),
        slot_.resize(col_.size());
    transpose_index(index_, ccol_.data(), row_.data(), slot_.data());
    fill(x_), fill(dy_), fill(residual_), fill(bias_);
    values_.resize(col_.size() * static_cast<std::size_t>(shape_.taps() * c.block.rows * c.block.cols) *
                   size_of(dtype));
    for_each_weight([&](std::int64_t at, std::int64_t o, std::int64_t i, std::int64_t) {
      store(dtype_, values_.data(), at, o < c_.rows && i < c_.cols ? number() : 0);
    });
  }

  bsr_conv::Problem problem() const {
    bsr_conv::Problem p = describe_conv(index_, shape_, dtype_, direction_);
    p.bias = c_.bias && direction_ != Direction::dw;
    p.activation = relu() ? Activation::relu : Activation::none, p.residual = residual();
    return p;
  }

  std::string text() const {
    std::string all = std::string(name_of(direction_)) + " " + name_of(dtype_) + " " +
                      std::to_string(c_.rows) + "x" + std::to_string(c_.cols) + " block " +
                      to_string(c_.block) + " density " + std::to_string(c_.density) + " bias " +
                      std::to_string(c_.bias) + " relu " + std::to_string(c_.relu) + " residual " +
                      std::to_string(c_.residual) + " padding " + std::to_string(c_.padding) + " images " +
                      std::to_string(c_.images);
    for (const ConvWindow& axis : c_.axes)
      for (const auto& [name, number] : {std::pair{" in ", axis.in},
                                         {" kernel ", axis.kernel},
                                         {" stride ", axis.stride},
                                         {" padded ", axis.padding},
                                         {" dilation ", axis.dilation}})
        all += name + std::to_string(number);
    return all;
  }

  bool takes(const std::string& kernel) const {
    try {
      return plan_conv(problem(), index_, Executor::serial(), kernel) != nullptr;
    } catch (const Error&) {
      return false;
    }
  }

  /// What a row computes; dW as one row of all values.
  Matrix run(const std::string& kernel, const Executor& executor) {
    const auto plan = plan_conv(problem(), index_, executor, kernel);
    Matrix out = output();
    Scratch scratch(plan->workspace_bytes);
    const std::span<std::byte> workspace = scratch.span();
    calling([&] { return kernel + " of " + text(); });
    const MatrixView view{out.data(), dtype_, out.rows, out.cols, out.stride};
    const Addends addends(c_.bias ? bias_.data() : nullptr, residual() ? seen(residual_) : ConstMatrixView{});
    if (direction_ == Direction::forward)
      conv(*plan, seen(x_), index_, values_.data(), addends, view, workspace, executor);
    else if (direction_ == Direction::dx)
      conv_dx(*plan, seen(dy_), index_, {ccol_.data(), row_.data(), slot_.data()}, values_.data(), addends,
              view, workspace, executor);
    else
      conv_dw(*plan, seen(dy_), seen(x_), index_, out.data(), workspace, executor);
    EXPECT_TRUE(out.padding_untouched()) << kernel;
    EXPECT_FALSE(scratch.overrun()) << kernel << " overran its workspace";
    return out;
  }

  /// Makes one element of dY infinite.
  void spoil() { dy_.set(0, 0, INFINITY); }

  /// dW's padding: what lies in no W.
  void expect_zero_padding(const Matrix& out) const {
    for_each_weight([&](std::int64_t at, std::int64_t o, std::int64_t i, std::int64_t tap) {
      if (o >= c_.rows || i >= c_.cols) {
        ASSERT_EQ(out.at(0, at), 0) << o << ", " << i << " under tap " << tap;
      }
    });
  }

  /// The values in dense memory and back.
  void expect_packing_undone() {
    Matrix dense(dtype_, c_.rows, shape_.taps() * c_.cols, c_.padding);
    std::vector<std::byte> again(values_.size(), kPoison);
    calling([&] { return "conv_unpack and conv_pack of " + text(); });
    conv_unpack(index_, shape_.taps(), values_.data(),
                {dense.data(), dtype_, dense.rows, dense.cols, dense.stride}, Executor::serial());
    conv_pack(seen(dense), index_, shape_.taps(), again.data(), Executor::serial());
    EXPECT_TRUE(dense.padding_untouched());
    EXPECT_EQ(again, values_);
  }

  void compare(const Matrix& out) const {
    std::vector<double> exact(static_cast<std::size_t>(out.rows * out.cols));
    if (direction_ != Direction::dw && c_.bias)
      for (std::size_t i = 0; i < exact.size(); ++i)
        exact[i] = bias_.at(0, static_cast<std::int64_t>(i) % out.cols);
    for_each_weight([&](std::int64_t at, std::int64_t o, std::int64_t i, std::int64_t tap) {
      if (o >= c_.rows || i >= c_.cols) return;
      const double w = load(dtype_, values_.data(), at);
      for (const auto& [y, x] : pairs_[static_cast<std::size_t>(tap)])
        if (direction_ == Direction::forward)
          exact[static_cast<std::size_t>(y * c_.rows + o)] += w * x_.at(x, i);
        else if (direction_ == Direction::dx)
          exact[static_cast<std::size_t>(x * c_.cols + i)] += w * dy_.at(y, o);
        else
          exact[static_cast<std::size_t>(at)] += dy_.at(y, o) * x_.at(x, i);
    });
    Matrix rounded(dtype_, 1, 1, 0);
    for (std::int64_t r = 0; r < out.rows; ++r)
      for (std::int64_t k = 0; k < out.cols; ++k) {
        double sum = exact[static_cast<std::size_t>(r * out.cols + k)];
        if (relu()) sum = std::max(sum, 0.0);
        rounded.set(0, 0, residual() ? sum + residual_.at(r, k) : sum);
        ASSERT_EQ(out.at(r, k), rounded.at(0, 0)) << "at " << r << ", " << k;
      }
  }

 private:
  bool relu() const { return c_.relu && direction_ == Direction::forward; }
  bool residual() const { return c_.residual && direction_ == Direction::forward; }
  double number() { return static_cast<double>(random_() % 5) - 2; }
  void fill(Matrix& matrix) {
    for (std::int64_t r = 0; r < matrix.rows; ++r)
      for (std::int64_t k = 0; k < matrix.cols; ++k) matrix.set(r, k, number());
  }
  ConstMatrixView seen(Matrix& matrix) const {
    return {matrix.data(), dtype_, matrix.rows, matrix.cols, matrix.stride};
  }
  Matrix output() const {
    if (direction_ == Direction::forward) return Matrix(dtype_, shape_.out_pixels(), c_.rows, c_.padding);
    if (direction_ == Direction::dx) return Matrix(dtype_, shape_.in_pixels(), c_.cols, c_.padding);
    return Matrix(dtype_, 1, static_cast<std::int64_t>(values_.size() / size_of(dtype_)), 0);
  }

  /// body(position in the values, output, input, tap), and the pairs of pixels that each tap joins.
  template <class Body>
  void for_each_weight(const Body& body) const {
    const ConvAxis(&a)[3] = shape_.axis;
    if (pairs_.empty())
      for (int tz = 0; tz < a[0].kernel; ++tz)
        for (int ty = 0; ty < a[1].kernel; ++ty)
          for (int tx = 0; tx < a[2].kernel; ++tx) join(tz, ty, tx);
    std::int64_t at = 0;
    for (std::int64_t r = 0; r < index_.block_rows(); ++r)
      for (std::int64_t b = crow_[static_cast<std::size_t>(r)]; b < crow_[static_cast<std::size_t>(r + 1)];
           ++b)
        for (std::int64_t tap = 0; tap < shape_.taps(); ++tap)
          for (int o = 0; o < c_.block.rows; ++o)
            for (int i = 0; i < c_.block.cols; ++i)
              body(at++, r * c_.block.rows + o,
                   std::int64_t{col_[static_cast<std::size_t>(b)]} * c_.block.cols + i, tap);
  }
  void join(int tz, int ty, int tx) const {
    const ConvAxis(&a)[3] = shape_.axis;
    std::vector<std::pair<std::int64_t, std::int64_t>> pairs;
    pairs.reserve(static_cast<std::size_t>(shape_.out_pixels()));
    std::int64_t y = 0;
    const auto under = [](const ConvAxis& axis, int p, int tap) {
      return p * axis.stride - axis.padding + tap * axis.dilation;
    };
    for (int image = 0; image < shape_.images; ++image)
      for (int z = 0; z < a[0].out; ++z)
        for (int v = 0; v < a[1].out; ++v)
          for (int u = 0; u < a[2].out; ++u, ++y) {
            const int xz = under(a[0], z, tz), xv = under(a[1], v, ty), xu = under(a[2], u, tx);
            if (xz < 0 || xz >= a[0].in || xv < 0 || xv >= a[1].in || xu < 0 || xu >= a[2].in) continue;
            pairs.push_back({y, ((std::int64_t{image} * a[0].in + xz) * a[1].in + xv) * a[2].in + xu});
          }
    pairs_.push_back(std::move(pairs));
  }

  CpuConvCase c_;
  DType dtype_;
  Direction direction_;
  ConvShape shape_;
  std::mt19937 random_{7};
  std::vector<std::int32_t> crow_, col_, ccol_, row_, slot_;
  IndexView index_;
  Matrix x_, dy_, residual_, bias_;
  std::vector<std::byte> values_;
  mutable std::vector<std::vector<std::pair<std::int64_t, std::int64_t>>> pairs_;  // of each tap
};

/// A lent convolution by its definition, in fp64. With a context, a std::vector<std::byte>, it keeps the
/// result there instead of in `out`.
inline void lent_conv(void* context, DenseConv& conv) {
  const ConvAxis(&a)[3] = conv.shape.axis;
  const bool forward = conv.direction == Direction::forward, dw = conv.direction == Direction::dw;
  const std::int64_t rows = forward ? conv.out.cols : conv.a.cols;
  const std::int64_t cols = forward ? conv.a.cols : dw ? conv.b.cols : conv.out.cols;
  if (context != nullptr) {
    auto& kept = *static_cast<std::vector<std::byte>*>(context);
    kept.resize(static_cast<std::size_t>(conv.out.rows * conv.out.cols) * size_of(conv.out.dtype));
    conv.out.data = kept.data(), conv.out.stride = conv.out.cols;
  }
  std::vector<double> sums(static_cast<std::size_t>(conv.out.rows * conv.out.cols));
  const auto sum = [&](std::int64_t r, std::int64_t k) -> double& {
    return sums[static_cast<std::size_t>(r * conv.out.cols + k)];
  };
  const auto at = [](const ConstMatrixView& m, std::int64_t r, std::int64_t k) {
    return load(m.dtype, m.data, r * m.stride + k);
  };
  std::int64_t y = 0;
  for (int image = 0; image < conv.shape.images; ++image)
    for (int z = 0; z < a[0].out; ++z)
      for (int v = 0; v < a[1].out; ++v)
        for (int u = 0; u < a[2].out; ++u, ++y)
          for (std::int64_t tap = 0; tap < conv.shape.taps(); ++tap) {
            const int t[3] = {static_cast<int>(tap / (a[1].kernel * a[2].kernel)),
                              static_cast<int>(tap / a[2].kernel % a[1].kernel),
                              static_cast<int>(tap % a[2].kernel)};
            const int p[3] = {z, v, u};
            std::int64_t x = image;
            bool inside = true;
            for (int i = 0; i < 3; ++i) {
              const int under = p[i] * a[i].stride - a[i].padding + t[i] * a[i].dilation;
              inside = inside && under >= 0 && under < a[i].in;
              x = x * a[i].in + under;
            }
            if (!inside) continue;
            for (std::int64_t o = 0; o < rows; ++o)
              for (std::int64_t i = 0; i < cols; ++i)
                if (forward)
                  sum(y, o) += at(conv.a, x, i) * at(conv.b, o, tap * cols + i);
                else if (dw)
                  sum(o, tap * cols + i) += at(conv.a, y, o) * at(conv.b, x, i);
                else
                  sum(x, i) += at(conv.a, y, o) * at(conv.b, o, tap * cols + i);
          }
  for (std::int64_t r = 0; r < conv.out.rows; ++r)
    for (std::int64_t k = 0; k < conv.out.cols; ++k) {
      const double bias = conv.bias != nullptr ? load(conv.out.dtype, conv.bias, k) : 0;
      store(conv.out.dtype, conv.out.data, r * conv.out.stride + k, sum(r, k) + bias);
    }
}

/// Threads, and that convolution, which writes into `out`.
inline Executor lending() {
  Executor executor = backwards(3);
  executor.context = nullptr, executor.conv = lent_conv;
  return executor;
}

}  // namespace sparseloom::testing
