// The norms between recurrent steps on the CPU: fp64 against the formula, the other dtypes against fp64.
#include "sparseloom/unit_norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/allocation.h"
#include "core/backwards.h"
#include "core/rng.h"
#include "sparseloom/generic/scalar.h"

namespace sparseloom::testing {
namespace {

struct Shape {
  std::int64_t n, groups, hidden, side, stride;
  bool extra, multiply;
};

/// Multiples of 1 / 32 in [-2, 2), which every dtype holds.
std::vector<std::byte> drawn(DType dtype, std::int64_t count, std::uint64_t seed) {
  core::Rng rng(seed);
  std::vector<std::byte> made(static_cast<std::size_t>(count) * size_of(dtype));
  for (std::int64_t i = 0; i < count; ++i)
    kernels::store(dtype, made.data(), i, (static_cast<double>(rng.below(128)) - 64) / 32);
  return made;
}

/// One norm and its gradients.
struct Norm {
  Shape s;
  DType dtype, wide;
  std::vector<std::byte> z, weight, bias, extra, y, statistics, dy, dz, dextra, means, sums;

  Norm(DType given, const Shape& shape, const Executor& executor)
      : s(shape), dtype(given), wide(given == DType::f64 ? DType::f64 : DType::f32) {
    const std::int64_t width = s.groups * s.hidden, slots = (s.hidden + s.stride - 1) / s.stride;
    z = drawn(dtype, s.n * width, 1), weight = drawn(dtype, width, 2), bias = drawn(dtype, width, 3);
    extra = drawn(dtype, s.n * slots, 4), dy = drawn(dtype, s.n * width, 5);
    y = dz = std::vector<std::byte>(z.size(), std::byte{0xff});
    dextra = std::vector<std::byte>(extra.size(), std::byte{0xff});
    statistics = means = std::vector<std::byte>(static_cast<std::size_t>(s.n * s.groups * 2) * size_of(wide));
    sums = std::vector<std::byte>(static_cast<std::size_t>(kUnitNormParts * 2 * width) * size_of(wide));
    UnitNorm norm;
    norm.dtype = dtype, norm.n = s.n, norm.groups = s.groups, norm.hidden = s.hidden, norm.side = s.side;
    norm.z = z.data(), norm.weight = weight.data(), norm.bias = bias.data();
    if (s.extra) norm.extra = extra.data(), norm.stride = s.stride, norm.group = s.groups - 1;
    norm.multiply = s.multiply, norm.scale = 0.5;
    norm.y = y.data(), norm.statistics = statistics.data();
    calling([&] {
      return std::string("unit_norm ") + name_of(dtype) + " n=" + std::to_string(s.n) +
             " groups=" + std::to_string(s.groups) + " hidden=" + std::to_string(s.hidden) +
             " side=" + std::to_string(s.side) + " stride=" + std::to_string(norm.stride);
    });
    unit_norm(norm, executor);
    unit_norm_gradient(
        {norm, dy.data(), dz.data(), s.extra ? dextra.data() : nullptr, means.data(), sums.data()}, executor);
  }

  double at(const std::vector<std::byte>& list, std::int64_t i) const {
    return kernels::load(dtype, list.data(), i);
  }
  /// Where unit j of a group of a row lies in z and dz.
  std::int64_t place(std::int64_t row, std::int64_t group, std::int64_t j) const {
    const std::int64_t side = s.side == 0 ? s.hidden : s.side;
    return row * s.groups * s.hidden + (j / side * s.groups + group) * side + j % side;
  }
};

// Whole vectors and tails, units side by side, extra numbers for some units, one unit.
constexpr Shape kShapes[] = {{3, 1, 32, 0, 1, true, false},
                             {2, 3, 13, 0, 2, true, true},
                             {5, 4, 48, 16, 3, true, false},
                             {1, 1, 1, 0, 1, false, false},
                             {9, 2, 70, 0, 1, false, false}};

TEST(UnitNorms, AreTheirFormulaInFp64) {
  for (const Shape& s : kShapes) {
    const Norm norm(DType::f64, s, Executor::serial());
    for (std::int64_t row = 0; row < s.n; ++row)
      for (std::int64_t group = 0; group < s.groups; ++group) {
        double mean = 0, variance = 0;
        for (std::int64_t j = 0; j < s.hidden; ++j)
          mean += norm.at(norm.z, norm.place(row, group, j)) / static_cast<double>(s.hidden);
        for (std::int64_t j = 0; j < s.hidden; ++j)
          variance +=
              std::pow(norm.at(norm.z, norm.place(row, group, j)) - mean, 2) / static_cast<double>(s.hidden);
        for (std::int64_t j = 0; j < s.hidden; ++j) {
          const std::int64_t unit = group * s.hidden + j, slots = (s.hidden + s.stride - 1) / s.stride;
          double value = (norm.at(norm.z, norm.place(row, group, j)) - mean) / std::sqrt(variance + 1e-5) *
                             norm.at(norm.weight, unit) +
                         norm.at(norm.bias, unit);
          if (s.extra && group == s.groups - 1 && j % s.stride == 0) {
            const double more = 0.5 * norm.at(norm.extra, row * slots + j / s.stride);
            value = s.multiply ? value * more : value + more;
          }
          ASSERT_NEAR(norm.at(norm.y, row * s.groups * s.hidden + unit), value, 1e-10)
              << s.hidden << " " << j;
        }
      }
  }
}

TEST(UnitNorms, OfEveryDtypeAreThoseOfFp64Rounded) {
  for (const Shape& s : kShapes) {
    const Norm exact(DType::f64, s, Executor::serial());
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      const double eps = dtype == DType::f32 ? 1e-4 : dtype == DType::f16 ? 2e-2 : 1e-1;
      const Norm norm(dtype, s, backwards(3));
      const auto expect_near = [&](const char* name, const std::vector<std::byte>& found,
                                   const std::vector<std::byte>& expected) {
        for (std::int64_t i = 0; i < std::ssize(found) / static_cast<std::int64_t>(size_of(dtype)); ++i)
          ASSERT_NEAR(norm.at(found, i), exact.at(expected, i), eps * (1 + std::abs(exact.at(expected, i))))
              << name << " " << name_of(dtype) << " hidden " << s.hidden << " at " << i;
      };
      expect_near("y", norm.y, exact.y);
      expect_near("dz", norm.dz, exact.dz);
      if (s.extra) expect_near("dextra", norm.dextra, exact.dextra);
    }
  }
}

}  // namespace
}  // namespace sparseloom::testing
