// Pruning and packing at once on a GPU has the bits of the CPU, in every dtype, at odd sizes and with ties.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "core/rng.h"
#include "kernels/cuda/on_gpu.h"
#include "runtime/cuda.h"
#include "sparseloom/generic/scalar.h"
#include "sparseloom/semi24_ops.h"

namespace sparseloom::testing {
namespace {

struct Shape {
  std::int64_t rows, cols, gap;  // gap: elements between rows
};

struct Result {
  std::vector<std::byte> values, positions, mask, turned_values, turned_positions;
  Result(const Shape& s, DType dtype) {
    const Semi24View w{s.rows, s.cols}, t{s.cols, s.rows};
    const auto poisoned = [](std::int64_t bytes) {
      return std::vector<std::byte>(static_cast<std::size_t>(bytes), std::byte{0xa5});
    };
    const auto size = static_cast<std::int64_t>(size_of(dtype));
    values = poisoned(s.rows * w.row_values() * size), positions = poisoned(s.rows * w.position_bytes());
    mask = poisoned(s.rows * ((s.cols + 7) / 8));
    turned_values = poisoned(s.cols * t.row_values() * size);
    turned_positions = poisoned(s.cols * t.position_bytes());
  }
};

std::uint8_t* bytes(std::byte* data) { return reinterpret_cast<std::uint8_t*>(data); }

/// Normal numbers, or small integers, of which many are equal; NaN, infinities and -0 among both.
std::vector<std::byte> weight(const Shape& s, DType dtype, bool ties) {
  const std::int64_t count = s.rows * (s.cols + s.gap);
  std::vector<std::byte> w(static_cast<std::size_t>(count) * size_of(dtype));
  core::Rng rng(static_cast<std::uint64_t>(s.rows * 31 + s.cols));
  constexpr double kSpecial[] = {NAN, -0.0, 0.0, std::numeric_limits<double>::infinity(), 1e-7};
  for (std::int64_t i = 0; i < count; ++i) {
    double x =
        ties ? static_cast<double>(rng.below(9)) - 4 : static_cast<double>(rng.below(1 << 20)) / 4e5 - 1.3;
    if (rng.below(24) == 0) x = kSpecial[rng.below(5)];
    kernels::store(dtype, w.data(), i, x);
  }
  return w;
}

void check(const Shape& s, DType dtype, Semi24Pruning pruning, bool both, bool ties) {
  SCOPED_TRACE(std::string(name_of(dtype)) + " " + std::to_string(s.rows) + "x" + std::to_string(s.cols));
  const std::vector<std::byte> w = weight(s, dtype, ties);
  Result expected(s, dtype);
  const auto into = [&](std::byte* values, std::byte* positions, std::byte* mask, std::byte* turned_values,
                        std::byte* turned_positions) {
    return Semi24Compressed{values, bytes(positions), bytes(mask), both ? turned_values : nullptr,
                            both ? bytes(turned_positions) : nullptr};
  };
  semi24_compress({w.data(), dtype, s.rows, s.cols, s.cols + s.gap}, pruning,
                  into(expected.values.data(), expected.positions.data(), expected.mask.data(),
                       expected.turned_values.data(), expected.turned_positions.data()),
                  Executor::serial());
  const Stream stream;
  const Result poison(s, dtype);
  const OnGpu on(w), values(poison.values), positions(poison.positions), mask(poison.mask),
      turned_values(poison.turned_values), turned_positions(poison.turned_positions);
  semi24_compress(
      {on.get(), dtype, s.rows, s.cols, s.cols + s.gap}, pruning,
      into(values.get(), positions.get(), mask.get(), turned_values.get(), turned_positions.get()),
      Executor::cuda(0, stream.get()));
  stream.wait();
  EXPECT_EQ(values.read(), expected.values);
  EXPECT_EQ(positions.read(), expected.positions);
  EXPECT_EQ(mask.read(), expected.mask);
  EXPECT_EQ(turned_values.read(), expected.turned_values);
  EXPECT_EQ(turned_positions.read(), expected.turned_positions);
}

void check_all(const std::vector<Shape>& shapes, DType dtype) {
  for (const Shape& s : shapes)
    for (const bool ties : {false, true}) {
      check(s, dtype, Semi24Pruning::magnitude, false, ties);
      for (const Semi24Pruning pruning :
           {Semi24Pruning::transposable_greedy, Semi24Pruning::transposable_exact})
        for (const bool both : {false, true}) check(s, dtype, pruning, both, ties);
    }
}

class CudaSmallSemi24Pruning : public ::testing::TestWithParam<DType> {};
class CudaSemi24Pruning : public ::testing::TestWithParam<DType> {};

TEST_P(CudaSmallSemi24Pruning, HasTheBitsOfTheCpu) {
  check_all({{70, 136, 0}, {37, 61, 3}, {1, 3, 0}, {5, 8, 8}}, GetParam());
}

TEST_P(CudaSemi24Pruning, HasTheBitsOfTheCpu) {
  check_all({{512, 768, 0}, {333, 1032, 8}, {130, 2050, 1}}, GetParam());
}

std::vector<DType> dtypes() {
  if (runtime::cuda_device(0).sm < 80) return {};
  return {DType::f32, DType::f16, DType::bf16};
}

INSTANTIATE_TEST_SUITE_P(, CudaSmallSemi24Pruning, ::testing::ValuesIn(dtypes()));
INSTANTIATE_TEST_SUITE_P(, CudaSemi24Pruning, ::testing::ValuesIn(dtypes()));
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaSmallSemi24Pruning);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaSemi24Pruning);

}  // namespace
}  // namespace sparseloom::testing
