// fp32 as three bf16: what the parts cannot hold, against fp64 element by element, and no element hears of
// its neighbours' extremes.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "kernels/cuda/device_call.h"

namespace sparseloom::testing {
namespace {

constexpr BlockShape kBlocks[] = {{32, 32}, {64, 32}, {32, 128}, {64, 64}, {128, 128}};
constexpr double kInf = std::numeric_limits<double>::infinity();

std::vector<const kernels::Kernel*> bf16x3_kernels(const Problem& problem) {
  std::vector<const kernels::Kernel*> found;
  for (const kernels::Kernel* kernel : runnable_on_device(problem))
    if (std::string(kernel->name).starts_with("sm90_split")) found.push_back(kernel);
  return found;
}

class CudaSmallBf16x3 : public ::testing::TestWithParam<Direction> {
 protected:
  Case base(BlockShape block) const {
    Case c;
    c.direction = GetParam(), c.dtype = DType::f32;
    c.m = 70, c.rows = 3 * block.rows - 8, c.cols = 3 * block.cols - 12, c.block = block, c.density = 0.7;
    return c;
  }
  static Matrix& tokens(Instance& instance) {
    return instance.c.direction == Direction::forward ? instance.x : instance.dy;
  }
  static Matrix& other(Instance& instance) {
    return instance.c.direction == Direction::dw ? instance.x : instance.values;
  }

  // Every element within fp32's own reach of the answer: as many roundings as there are products, of the sum
  // of magnitudes, and the least denormal.
  static void expect_fp32(Instance& instance, const Matrix& out) {
    const Instance::Answer answer = instance.answer();
    for (std::int64_t r = 0; r < out.rows; ++r)
      for (std::int64_t c = 0; c < out.cols; ++c) {
        const auto i = static_cast<std::size_t>(r * out.cols + c);
        const double exact = answer.exact[i], got = out.at(r, c);
        if (std::isnan(exact)) {
          ASSERT_TRUE(std::isnan(got)) << describe(instance.c) << " at " << r << ", " << c << ": " << got;
        } else if (std::abs(exact) > std::numeric_limits<float>::max()) {
          ASSERT_EQ(got, std::copysign(kInf, exact)) << describe(instance.c) << " at " << r << ", " << c;
        } else {
          ASSERT_NEAR(got, exact, 0x1p-20 * answer.magnitude[i] + 0x1p-148)
              << describe(instance.c) << " at " << r << ", " << c;
        }
      }
  }
  void scale(Matrix& matrix, double factor) {
    for (std::int64_t r = 0; r < matrix.rows; ++r)
      for (std::int64_t c = 0; c < matrix.cols; ++c) matrix.set(r, c, matrix.at(r, c) * factor);
  }
};

TEST_P(CudaSmallBf16x3, Magnitudes) {
  for (const BlockShape block : kBlocks)
    for (const auto& [of_x, of_w] : {std::pair{1.0, 1.0},
                                     {1e-38, 1.0},
                                     {1.0, 1e-38},
                                     {1e-44, 1e30},
                                     {1e30, 1e-44},
                                     {1e-38, 1e38},
                                     {1e38, 1e-38},
                                     {1e20, 1e-20},
                                     {1e-25, 1e-25}}) {
      Instance instance(base(block));
      scale(tokens(instance), of_x), scale(other(instance), of_w);
      for (const kernels::Kernel* kernel : bf16x3_kernels(instance.cuda_problem(0))) {
        expect_fp32(instance, run_on_device(instance, *kernel, Memory::exact));
        if (HasFatalFailure()) return;
      }
    }
}

// All of one sign: what overflows does so to that infinity in every part.
TEST_P(CudaSmallBf16x3, OverflowIsInfinite) {
  Instance instance(base({64, 64}));
  for (Matrix* matrix : {&tokens(instance), &other(instance)})
    for (std::int64_t r = 0; r < matrix->rows; ++r)
      for (std::int64_t c = 0; c < matrix->cols; ++c)
        matrix->set(r, c, std::abs(matrix->at(r, c)) * (r % 2 ? 3e38 : 1e37));
  for (const kernels::Kernel* kernel : bf16x3_kernels(instance.cuda_problem(0)))
    expect_fp32(instance, run_on_device(instance, *kernel, Memory::exact));
}

// Inf meets zeros, numbers that are one bf16 exactly, and another Inf; elements that none of them reaches
// keep their bits.
TEST_P(CudaSmallBf16x3, InfinitiesAreMultipliedAsTheyAre) {
  for (const BlockShape block : kBlocks)
    for (const kernels::Kernel* kernel : bf16x3_kernels(Instance(base(block)).cuda_problem(0))) {
      Instance instance(base(block));
      Matrix &a = tokens(instance), &w = other(instance);
      for (std::int64_t r = 0; r < w.rows; r += 3)
        for (std::int64_t c = 0; c < w.cols; ++c)
          if (w.at(r, c) != 0) w.set(r, c, c % 5 ? 1.5 : 0);
      const Matrix clean = run_on_device(instance, *kernel, Memory::exact);
      expect_fp32(instance, clean);
      a.set(3, 1, kInf), a.set(40, a.cols - 1, -kInf), a.set(40, a.cols / 2, kInf), a.set(69, 0, 1e-40);
      if (w.rows > 0) w.set(1, 2, -kInf);
      const Matrix out = run_on_device(instance, *kernel, Memory::exact);
      expect_fp32(instance, out);
      if (HasFatalFailure()) return;
      for (std::int64_t c = 0; c < out.cols; ++c)
        for (const std::int64_t r : {1, 4, 41, 63}) {  // of dw, none above the token that became small
          if (!std::isfinite(out.at(r, c))) continue;
          EXPECT_EQ(out.at(r, c), clean.at(r, c)) << describe(instance.c) << " " << r << ", " << c;
        }
      EXPECT_EQ(run_on_device(instance, *kernel, Memory::exact).bytes, out.bytes)
          << "another run gave other bits";
    }
}

std::vector<Direction> directions() {
  if (when_devices(1).empty()) return {};
  return {Direction::forward, Direction::dx, Direction::dw};
}
INSTANTIATE_TEST_SUITE_P(, CudaSmallBf16x3, ::testing::ValuesIn(directions()),
                         [](const auto& info) { return std::string(name_of(info.param)); });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaSmallBf16x3);

}  // namespace
}  // namespace sparseloom::testing
