// What a case's product must be: the fp64 answer, the plain one beside it, and how an output is held against
// them.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "kernels/case.h"

namespace sparseloom::testing {
namespace {

double rounded(DType dtype, double value) {
  std::byte element[8];
  store(dtype, element, 0, value);
  return load(dtype, element, 0);
}

// A matrix as fp32, row after row: exactly, and as the plain product's operand. Tables, since the answer's
// inner loops then vectorise: on thousands of cases they are most of the tests' time.
struct Table {
  std::int64_t cols;
  std::vector<float> exact, plain;

  Table(const Matrix& matrix, bool tf32)
      : cols(matrix.cols), exact(static_cast<std::size_t>(matrix.rows * matrix.cols)) {
    for (std::int64_t r = 0; r < matrix.rows; ++r)
      for (std::int64_t c = 0; c < cols; ++c)
        exact[static_cast<std::size_t>(r * cols + c)] = static_cast<float>(matrix.at(r, c));
    plain = exact;
    if (tf32) std::transform(plain.begin(), plain.end(), plain.begin(), to_tf32);
  }

  // [blocks * bm, bn] -> [blocks * bn, bm]
  void transpose_blocks(BlockShape block) {
    for (std::vector<float>* list : {&exact, &plain}) {
      std::vector<float> turned(list->size());
      for (std::size_t first = 0; first < turned.size();
           first += static_cast<std::size_t>(block.rows * block.cols))
        for (std::int64_t i = 0; i < block.rows; ++i)
          for (std::int64_t j = 0; j < block.cols; ++j)
            turned[first + static_cast<std::size_t>(j * block.rows + i)] =
                (*list)[first + static_cast<std::size_t>(i * cols + j)];
      *list = std::move(turned);
    }
    cols = block.rows;
  }
};

// The three running sums of an answer; products arrive in the order that the plain one adds them in.
struct Sums {
  std::vector<double> exact, magnitude;
  std::vector<float> plain;

  explicit Sums(std::size_t size) : exact(size), magnitude(size), plain(size) {}

  // sums[at .. at + count) += left[l] * right[r .. r + count)
  void add(std::int64_t at, const Table& left, std::int64_t l, const Table& right, std::int64_t r,
           std::int64_t count) {
    double* const sum = exact.data() + at;
    double* const norm = magnitude.data() + at;
    float* const single = plain.data() + at;
    const double scalar = left.exact[static_cast<std::size_t>(l)];
    const float plain_scalar = left.plain[static_cast<std::size_t>(l)];
    const float* const vector = right.exact.data() + r;
    const float* const plain_vector = right.plain.data() + r;
    for (std::int64_t i = 0; i < count; ++i) {
      const double product = scalar * vector[i];
      sum[i] += product;
      norm[i] += std::abs(product);
      single[i] += plain_scalar * plain_vector[i];
    }
  }
};

}  // namespace

std::span<const Activation> activations() {
  static const auto all = [] {
    std::array<Activation, kActivationCount> codes{};
    for (int code = 0; code < kActivationCount; ++code) codes[code] = kActivations[code].activation;
    return codes;
  }();
  return all;
}
std::span<const Activation> functions() { return activations().subspan(1); }

double activate(Activation activation, double x) {
  switch (activation) {
    case Activation::none: return x;
    case Activation::relu: return x < 0 ? 0 : x;
    case Activation::gelu_erf: return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
    case Activation::gelu_tanh:
      return x /
             (1 + std::exp(-2 * std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));  // = 0.5 x (1 + tanh u)
    case Activation::silu: return x / (1 + std::exp(-x));
    case Activation::relu2: return x < 0 ? 0 : x * x;
  }
  return x;
}

double slope(Activation activation, double x) {
  return activation == Activation::relu2 ? std::max(1.0, 2 * x) : 1;
}

float to_tf32(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  if ((bits & 0x7f800000u) == 0x7f800000u) return x;
  bits = (bits + 0x1000u) &
         ~0x1fffu;  // half of the last kept bit; the carry may run into the exponent, up to inf: right
  std::memcpy(&x, &bits, sizeof bits);
  return x;
}

Instance::Answer Instance::answer() {
  const bool forward = c.direction == Direction::forward, dw = c.direction == Direction::dw;
  const Matrix none(c.dtype, 0, 0, 0);
  const Table in(c.direction == Direction::dx ? none : x, c.tf32), gradient(forward ? none : dy, c.tf32);
  Table weights(dw ? none : values, c.tf32);
  if (forward) weights.transpose_blocks(c.block);
  const std::int64_t bm = c.block.rows, bn = c.block.cols;
  Sums sums(static_cast<std::size_t>(out_rows() * out_cols()));
  for (std::int64_t r = 0; r < index().block_rows(); ++r)
    for (std::int64_t b = crow[r]; b < crow[r + 1]; ++b) {
      const std::int64_t o = r * bm, k = col[b] * bn, height = std::min(bm, c.rows - o),
                         width = std::min(bn, c.cols - k);
      for (std::int64_t t = 0; t < c.m; ++t) {
        for (std::int64_t j = 0; forward && j < width; ++j)
          sums.add(t * c.rows + o, in, t * c.cols + k + j, weights, (b * bn + j) * bm, height);
        for (std::int64_t i = 0; !forward && i < height; ++i)
          if (dw)
            sums.add((b * bm + i) * bn, gradient, t * c.rows + o + i, in, t * c.cols + k, width);
          else
            sums.add(t * c.cols + k, gradient, t * c.rows + o + i, weights, (b * bm + i) * bn, width);
      }
    }
  Answer a{std::move(sums.exact), std::vector<double>(sums.plain.begin(), sums.plain.end()),
           std::move(sums.magnitude)};
  for (std::size_t i = 0; i < a.exact.size(); ++i) {
    if (forward) {
      const double b = c.bias ? bias.at(0, static_cast<std::int64_t>(i) % c.rows) : 0;
      const auto at = static_cast<std::int64_t>(i);
      const double more = c.residual ? residual.at(at / c.rows, at % c.rows) : 0;
      a.magnitude[i] = (a.magnitude[i] + std::abs(b)) * slope(c.activation, a.exact[i] + b) + std::abs(more);
      a.exact[i] = activate(c.activation, a.exact[i] + b) + more;
      a.plain[i] = activate(c.activation, a.plain[i] + b) + more;
    }
    if (c.accumulate) {
      const double old = before.at(static_cast<std::int64_t>(i) / bn, static_cast<std::int64_t>(i) % bn);
      a.exact[i] += old, a.plain[i] += old, a.magnitude[i] += std::abs(old);
    }
    a.plain[i] = rounded(c.accumulate ? DType::f32 : c.dtype, a.plain[i]);
  }
  return a;
}

void expect_accurate(Instance& instance, const Matrix& out, const Instance::Answer& answer) {
  constexpr std::int64_t kTileRows = 16;
  // An activation's exponential and quotient cost fp32 a few last bits of its own.
  // Tensor cores cut their sums off instead of rounding them: what 16 bits hide and an fp32 gradient shows.
  const bool fp32_gradient =
      instance.c.direction == Direction::dw && (instance.c.dtype == DType::f32 || instance.c.accumulate);
  const double floor = instance.c.activation == Activation::none && !fp32_gradient ? 0x1p-23 : 0x1p-22;
  const std::int64_t tile_cols =
      instance.c.direction == Direction::forward ? instance.c.block.rows : instance.c.block.cols;
  for (std::int64_t r0 = 0; r0 < out.rows; r0 += kTileRows)
    for (std::int64_t c0 = 0; c0 < out.cols; c0 += tile_cols) {
      double error = 0, plain = 0, norm = 0;
      for (std::int64_t r = r0; r < std::min(out.rows, r0 + kTileRows); ++r)
        for (std::int64_t c = c0; c < std::min(out.cols, c0 + tile_cols); ++c) {
          const std::size_t i = static_cast<std::size_t>(r * out.cols + c);
          const double difference = std::abs(out.at(r, c) - answer.exact[i]);
          error = std::max(error, std::isnan(difference) ? INFINITY : difference);
          plain = std::max(plain, std::abs(answer.plain[i] - answer.exact[i]));
          norm = std::max(norm, answer.magnitude[i]);
        }
      ASSERT_LE(error, 2 * plain + floor * norm) << describe(instance.c) << " tile at " << r0 << ", " << c0;
    }
}

void expect_exact(const Instance& instance, const Matrix& out, const Instance::Answer& answer) {
  for (std::int64_t r = 0; r < out.rows; ++r)
    for (std::int64_t c = 0; c < out.cols; ++c)
      ASSERT_EQ(out.at(r, c), rounded(out.dtype, answer.exact[static_cast<std::size_t>(r * out.cols + c)]))
          << describe(instance.c) << " at " << r << ", " << c;
}

}  // namespace sparseloom::testing
