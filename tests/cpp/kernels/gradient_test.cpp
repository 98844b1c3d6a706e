// The pass before a backward pass's products on the CPU, against fp64: dz, its column sums, what it may
// write, one parallel region, and its bits on any number of threads.
#include "kernels/bsr_linear/cpu/gradient.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "core/counting.h"
#include "kernels/case.h"
#include "sparseloom/generic/scalar.h"

namespace sparseloom::testing {
namespace {

namespace cpu = kernels::cpu;

struct Shape {
  std::int64_t rows, cols, padding;
};

struct Operands {
  Matrix dy, saved, dz, dbias;
  std::optional<Scratch> workspace;
  cpu::GradientArgs args;

  Operands(DType dtype, Activation activation, const Shape& shape, bool with_bias)
      : dy(dtype, shape.rows, shape.cols, shape.padding),
        saved(dtype, shape.rows, shape.cols, shape.padding),
        dz(dtype, shape.rows, shape.cols, shape.padding),
        dbias(dtype, 1, shape.cols, 3) {
    for (std::int64_t r = 0; r < shape.rows; ++r)
      for (std::int64_t c = 0; c < shape.cols; ++c) {
        dy.set(r, c, static_cast<double>((r * 7 + c * 3) % 31 - 15) * 0.125);
        saved.set(r, c, static_cast<double>((r * 13 + c * 5) % 97 - 48) * 0.11);
      }
    args.activation = activation;
    args.dy = view(dy);
    if (activation != Activation::none) args.saved = view(saved), args.dz = view(dz);
    if (with_bias) args.dbias = dbias.data();
    workspace.emplace(cpu::gradient_workspace(args.dy));
    args.workspace = workspace->data();
  }
  static MatrixView view(Matrix& m) { return {m.data(), m.dtype, m.rows, m.cols, m.stride}; }
  void run(const Executor& executor) { cpu::gradient(args, executor); }
};

void check(DType dtype, Activation activation, const Shape& shape, bool with_bias) {
  SCOPED_TRACE(std::string(name_of(activation)) + ", " + std::to_string(shape.rows) + " x " +
               std::to_string(shape.cols));
  Operands o(dtype, activation, shape, with_bias);
  int regions = 0;
  o.run(counting(regions));
  EXPECT_EQ(regions, shape.rows * shape.cols >= 40000 ? 1 : 0);
  const std::vector<std::byte> dz = o.dz.bytes, dbias = o.dbias.bytes;
  for (const Executor& executor : {Executor::serial(), Executor::pool(4)}) {
    o.run(executor);
    EXPECT_TRUE(o.dz.bytes == dz && o.dbias.bytes == dbias) << "other bits on other threads";
  }
  EXPECT_TRUE(o.dz.padding_untouched() && o.dbias.padding_untouched());
  EXPECT_FALSE(o.workspace->overrun());

  const bool sixteen = size_of(dtype) == 2;
  const double half_ulp = dtype == DType::f64   ? 0x1p-53
                          : dtype == DType::f32 ? 0x1p-24
                          : dtype == DType::f16 ? 0x1p-11
                                                : 0x1p-8;
  const double own = dtype == DType::f64 ? 1e-15 : 2e-6;  // of the derivative, and of a sum
  for (std::int64_t c = 0; c < shape.cols; ++c) {
    double sum = 0, magnitude = 0;
    for (std::int64_t r = 0; r < shape.rows; ++r) {
      const double slope = kernels::slope(activation, o.saved.at(r, c)), expected = o.dy.at(r, c) * slope;
      sum += o.args.dz.data != nullptr && sixteen ? o.dz.at(r, c) : expected;
      magnitude += std::abs(o.dy.at(r, c));
      if (o.args.dz.data == nullptr) continue;
      ASSERT_NEAR(o.dz.at(r, c), expected,
                  half_ulp * std::abs(expected) + own * std::abs(o.dy.at(r, c)) + 0x1p-25)
          << r << ", " << c;
    }
    if (with_bias) {
      ASSERT_NEAR(o.dbias.at(0, c), sum, half_ulp * std::abs(sum) + own * magnitude) << "column " << c;
    } else {
      ASSERT_TRUE(std::isnan(o.dbias.at(0, c)));
    }
  }
}

class Gradient : public ::testing::TestWithParam<DType> {};

TEST_P(Gradient, MatchesFp64OpensOneRegionAndWritesNothingElse) {
  // One chunk of rows and several, one strip of columns and several, whole vectors and not.
  for (const Shape& shape : {Shape{1, 8, 0}, Shape{5, 1, 0}, Shape{9, 77, 3}, Shape{33, 1032, 0},
                             Shape{300, 264, 8}, Shape{2100, 21, 1}, Shape{40, 2049, 0}})
    for (const Activation activation : activations())
      for (const bool with_bias : {true, false})
        if (with_bias || activation != Activation::none) check(GetParam(), activation, shape, with_bias);
}

TEST_P(Gradient, OfNoRowsTheSumsAreZero) {
  Operands o(GetParam(), Activation::none, {0, 70, 0}, true);
  o.run(Executor::serial());
  for (std::int64_t c = 0; c < 70; ++c) EXPECT_EQ(o.dbias.at(0, c), 0);
}

TEST_P(Gradient, ReluTakesAndGivesWhatThresholdDoes) {
  constexpr double inf = std::numeric_limits<double>::infinity();
  Operands o(GetParam(), Activation::relu, {1, 11, 0}, false);
  for (std::int64_t c = 0; c < 11; ++c) o.dy.set(0, c, inf), o.saved.set(0, c, c < 9 ? 0.0 : 2.0);
  o.saved.set(0, 1, -0.0);
  o.saved.poison(0, 2);
  o.run(Executor::serial());
  for (const std::int64_t c : {0, 1, 3, 8}) EXPECT_EQ(o.dz.at(0, c), 0) << c;
  for (const std::int64_t c : {2, 9, 10}) EXPECT_EQ(o.dz.at(0, c), inf) << c;
}

TEST(GradientRegions, NoneWhereThreadsComeLaterThanTheySave) {
  Operands o(DType::f32, Activation::silu, {300, 264, 0}, true);
  int regions = 0;
  Executor late = counting(regions);
  o.run(late);
  EXPECT_EQ(regions, 1);
  late.late_us = 8000;
  o.run(late);
  EXPECT_EQ(regions, 1);
}

INSTANTIATE_TEST_SUITE_P(, Gradient, ::testing::Values(DType::f64, DType::f32, DType::f16, DType::bf16),
                         [](const auto& info) { return std::string(sparseloom::name_of(info.param)); });

}  // namespace
}  // namespace sparseloom::testing
