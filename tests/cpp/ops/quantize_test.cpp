// quantize_rows on the CPU: every element against the definition, in each dtype.
#include "sparseloom/quantize.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "core/expect_error.h"
#include "core/rng.h"
#include "sparseloom/generic/scalar.h"

namespace sparseloom::testing {
namespace {

using test::expect_error;

constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();

class QuantizeRows : public ::testing::TestWithParam<DType> {};

TEST_P(QuantizeRows, DividesByTheRowsFactorAndRounds) {
  const DType dtype = GetParam();
  for (const std::int64_t cols : {1, 7, 16, 33, 200})
    for (const std::int64_t rows : {1, 9, 700}) {
      const std::int64_t stride = cols + 3;
      core::Rng rng(static_cast<std::uint64_t>(cols * 1000 + rows));
      std::vector<std::byte> x(static_cast<std::size_t>(rows * stride) * size_of(dtype));
      for (std::int64_t i = 0; i < rows * stride; ++i)
        kernels::store(dtype, x.data(), i, (static_cast<double>(rng.below(2001)) - 1000) / 128);
      for (std::int64_t c = 0; c < cols && rows > 5; ++c) kernels::store(dtype, x.data(), 2 * stride + c, 0);
      if (rows > 5) kernels::store(dtype, x.data(), 3 * stride + cols - 1, -kInf);
      if (rows > 5) kernels::store(dtype, x.data(), 4 * stride, kNan);
      const float factor = 0.04f;
      for (const float* given : {static_cast<const float*>(nullptr), &factor})
        for (const Executor& executor : {Executor::serial(), Executor::pool(3)}) {
          std::vector<std::int8_t> values(static_cast<std::size_t>(rows * cols), 99);
          std::vector<float> scale(static_cast<std::size_t>(rows), -1);
          quantize_rows({x.data(), dtype, rows, cols, stride}, given, {values.data(), scale.data()},
                        executor);
          for (std::int64_t r = 0; r < rows; ++r) {
            const auto at = [&](std::int64_t c) {
              return static_cast<float>(kernels::load(dtype, x.data(), r * stride + c));
            };
            float largest = 0;
            for (std::int64_t c = 0; c < cols; ++c)
              if (!(std::abs(at(c)) <= largest) && !std::isnan(largest)) largest = std::abs(at(c));
            const float wanted = given ? *given : largest / 127;
            const float got = given ? *given : scale[static_cast<std::size_t>(r)];
            ASSERT_TRUE(got == wanted || (std::isnan(got) && std::isnan(wanted))) << got << " for " << wanted;
            const float inverse = std::isfinite(1 / wanted) ? 1 / wanted : 0;
            for (std::int64_t c = 0; c < cols; ++c) {
              const float quotient = at(c) * inverse;
              const float clipped =
                  std::isnan(quotient) || inverse == 0 ? 0 : std::fmin(127.0f, std::fmax(-127.0f, quotient));
              ASSERT_EQ(values[static_cast<std::size_t>(r * cols + c)], std::nearbyint(clipped))
                  << rows << " x " << cols << " at " << r << ", " << c;
            }
          }
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, QuantizeRows, ::testing::Values(DType::f32, DType::f16, DType::bf16));

TEST(QuantizeRowsErrors, SayWhatIsMissing) {
  std::vector<double> x(4);
  std::vector<std::int8_t> values(4);
  float scale[1] = {7};
  const Executor serial = Executor::serial();
  const auto call = [&](DType dtype, float* to) {
    quantize_rows({x.data(), dtype, 1, 4, 4}, nullptr, {values.data(), to}, serial);
  };
  expect_error("quantize_rows", {"f32, f16 or bf16"}, [&] { call(DType::f64, scale); });
  expect_error("quantize_rows", {"scale"}, [&] { call(DType::f32, nullptr); });
  quantize_rows({nullptr, DType::f32, 1, 0, 0}, nullptr, {nullptr, scale}, serial);
  EXPECT_EQ(scale[0], 0);
}

}  // namespace
}  // namespace sparseloom::testing
