// The inner loops of one-shot pruning on small weights whose results are known, and what they refuse.
#include "sparseloom/one_shot.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "sparseloom/error.h"
#include "sparseloom/generic/float8.h"

namespace sparseloom {
namespace {

TEST(ColumnSweep, CorrectsTheColumnsAfterTheRemovedOne) {
  std::array<float, 3> w{4, 10, 20}, errors{};
  const std::array<float, 9> u{2, 1, 3, 0, 5, 1, 0, 0, 1};
  std::array<bool, 3> mask{false, true, false};
  ColumnSweep sweep{1, 3, w.data(), 3, u.data(), 3, mask.data(), errors.data()};
  column_sweep(sweep, {});
  EXPECT_EQ(w, (std::array<float, 3>{0, 8, 0}));        // 10 - 2 x 1
  EXPECT_EQ(errors, (std::array<float, 3>{2, 0, 14}));  // 4 / 2, then (20 - 2 x 3) / 1
}

TEST(ColumnSweep, ChoosesEachGroupFromCorrectedWeights) {
  // With the diagonal alone, the second group would keep its first element.
  std::array<float, 4> w{1, 9, 3, 2}, errors{};
  std::array<float, 16> u{};
  for (std::size_t i = 0; i < 4; ++i) u[5 * i] = 1;
  u[2] = 2;  // removing w_0 takes 2 from w_2
  std::array<bool, 4> mask{};
  ColumnSweep sweep{1, 4, w.data(), 4, u.data(), 4, mask.data(), errors.data(), 1, 2};
  column_sweep(sweep, {});
  EXPECT_EQ(mask, (std::array<bool, 4>{false, true, false, true}));
  EXPECT_EQ(w, (std::array<float, 4>{0, 9, 0, 2}));
}

TEST(ColumnSweep, OfEqualCostsKeepsTheFirst) {
  std::array<float, 4> w{1, -1, 1, -1}, errors{};
  std::array<float, 16> u{};
  for (std::size_t i = 0; i < 4; ++i) u[5 * i] = 1;
  std::array<bool, 4> mask{};
  ColumnSweep sweep{1, 4, w.data(), 4, u.data(), 4, mask.data(), errors.data(), 2, 4};
  column_sweep(sweep, {});
  EXPECT_EQ(mask, (std::array<bool, 4>{true, true, false, false}));
}

using Matrix = std::vector<std::vector<double>>;

/// The inverse of the last rows and columns of a positive definite matrix, from `first` on.
Matrix inverse_from(const Matrix& h, std::size_t first) {
  const std::size_t n = h.size() - first;
  Matrix a(n, std::vector<double>(2 * n));
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < n; ++j) a[i][j] = h[first + i][first + j];
    a[i][n + i] = 1;
  }
  for (std::size_t p = 0; p < n; ++p) {
    const double pivot = a[p][p];
    for (double& x : a[p]) x /= pivot;
    for (std::size_t i = 0; i < n; ++i) {
      const double factor = a[i][p];
      for (std::size_t j = 0; i != p && j < 2 * n; ++j) a[i][j] -= factor * a[p][j];
    }
  }
  Matrix inverse(n);
  for (std::size_t i = 0; i < n; ++i)
    inverse[i].assign(a[i].begin() + static_cast<std::ptrdiff_t>(n), a[i].end());
  return inverse;
}

/// The upper triangle U of a matrix U^T U, dense.
std::vector<float> upper_factor(const Matrix& a) {
  const std::size_t n = a.size();
  Matrix u(n, std::vector<double>(n));
  std::vector<float> result(n * n);
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = i; j < n; ++j) {
      double sum = a[i][j];
      for (std::size_t k = 0; k < i; ++k) sum -= u[k][i] * u[k][j];
      u[i][j] = i == j ? std::sqrt(sum) : sum / u[i][i];
      result[i * n + j] = static_cast<float>(u[i][j]);
    }
  return result;
}

/// The number of an 8-bit type next to x, found among all of them.
double nearest_of(SweepGrid grid, double x) {
  double best = 0;
  for (int bits = 0; bits < 256; ++bits) {
    const core::F8E4M3 small{static_cast<std::uint8_t>(bits)};
    const double value = grid == SweepGrid::int8 ? std::max(bits - 128, -127) : double{core::to_f32(small)};
    if (std::abs(value - x) < std::abs(best - x)) best = value;
  }
  return best;
}

TEST(ColumnSweep, RoundsAndCorrectsAsTheNaiveSweepInFp64) {
  constexpr std::size_t rows = 5, cols = 24;
  std::mt19937 random(0);
  std::normal_distribution<double> normal;
  Matrix h(cols, std::vector<double>(cols)), x(60, std::vector<double>(cols));
  for (auto& token : x) {
    for (double& each : token) each = normal(random);
    for (std::size_t j = 1; j < cols; ++j) token[j] += 0.7 * token[j - 1];
  }
  for (std::size_t i = 0; i < cols; ++i)
    for (std::size_t j = 0; j < cols; ++j)
      for (const auto& token : x) h[i][j] += token[i] * token[j] / 60;
  const std::vector<float> factor = upper_factor(inverse_from(h, 0));
  for (const SweepGrid grid : {SweepGrid::int8, SweepGrid::e4m3}) {
    const double limit = grid == SweepGrid::int8 ? 127 : 448;
    std::vector<float> w(rows * cols), errors(rows * cols), tops(rows, 1.75f);
    std::unique_ptr<bool[]> mask(new bool[rows * cols]);
    std::vector<std::int32_t> pins(rows, -1);
    for (std::size_t i = 0; i < w.size(); ++i)
      w[i] = 0.5f * static_cast<float>(normal(random)), mask[i] = normal(random) > 0;
    pins[1] = 3, mask[cols + 3] = true;
    tops[4] = 0;  // nothing but zeros is on its grid
    const std::vector<float> before = w;
    ColumnSweep sweep{rows, cols, w.data(), cols, factor.data(), cols, mask.get(), errors.data()};
    sweep.grid = grid, sweep.tops = tops.data(), sweep.pins = pins.data();
    column_sweep(sweep, {});
    for (std::size_t row = 0; row < rows; ++row) {
      std::vector<double> left(before.begin() + static_cast<std::ptrdiff_t>(row * cols),
                               before.begin() + static_cast<std::ptrdiff_t>((row + 1) * cols));
      for (std::size_t j = 0; j < cols; ++j) {
        const double scale = tops[row] / limit;
        double value = scale > 0 && mask[row * cols + j] ? scale * nearest_of(grid, left[j] / scale) : 0;
        if (pins[row] == static_cast<int>(j)) value = std::copysign(double{tops[row]}, left[j]);
        const Matrix inverse = inverse_from(h, j);
        const double error = (left[j] - value) / inverse[0][0];
        for (std::size_t k = j; k < cols; ++k) left[k] -= error * inverse[0][k - j];
        EXPECT_NEAR(w[row * cols + j], value, 1e-6) << row << ", " << j;
      }
    }
    EXPECT_EQ(std::abs(w[cols + 3]), 1.75f);
  }
}

TEST(SwapPairs, KeepsTheElementThatCostsMoreAtItsBestValue) {
  const std::array<float, 2> w{1, 3};
  std::array<float, 2> values{1, 0};
  const std::array<float, 4> gram{1, 0.5f, 0.5f, 1};
  std::array<bool, 2> mask{true, false};
  EXPECT_EQ(swap_pairs({1, 2, w.data(), values.data(), gram.data(), mask.data(), 0, 10}, {}), 1);
  EXPECT_EQ(mask, (std::array<bool, 2>{false, true}));
  EXPECT_EQ(values, (std::array<float, 2>{0, 3.5f}));  // 3 and half of the 1 that it is correlated with
}

TEST(SwapPairs, MakesNoneWhereThereIsNoError) {
  const std::array<float, 2> w{1, 3}, nan{1, std::numeric_limits<float>::quiet_NaN()};
  const std::array<float, 4> gram{1, 1.001f, 1.001f, 1};  // of no inputs: swaps would lower it for ever
  for (const auto& of : {w, nan}) {
    std::array<float, 2> values = of;
    std::array<bool, 2> mask{true, false};
    EXPECT_EQ(swap_pairs({1, 2, of.data(), values.data(), gram.data(), mask.data(), 0, 1ll << 40}, {}), 0);
    EXPECT_EQ(mask, (std::array<bool, 2>{true, false}));
  }
}

TEST(SwapPairs, StaysInsideOfGroupsAndBelowTheMost) {
  const std::array<float, 4> w{1, 9, 1, 9};
  std::array<float, 4> values{1, 0, 1, 0};
  std::array<float, 16> gram{};
  for (std::size_t i = 0; i < 4; ++i) gram[5 * i] = 1;
  std::array<bool, 4> mask{true, false, true, false};
  EXPECT_EQ(swap_pairs({1, 4, w.data(), values.data(), gram.data(), mask.data(), 2, 1}, {}), 1);
  EXPECT_EQ(mask, (std::array<bool, 4>{false, true, true, false}));
}

TEST(OneShot, RefusesWhatDoesNotFit) {
  std::array<float, 4> w{}, errors{};
  std::array<bool, 4> mask{};
  const ColumnSweep good{1, 4, w.data(), 4, w.data(), 4, mask.data(), errors.data()};
  ColumnSweep sweep = good;
  sweep.cols = kSweepColumns + 1;
  EXPECT_THROW(column_sweep(sweep, {}), Error);
  sweep = good, sweep.n = 3, sweep.m = 2;
  EXPECT_THROW(column_sweep(sweep, {}), Error);
  sweep = good, sweep.m = kSweepGroup + 1;
  EXPECT_THROW(column_sweep(sweep, {}), Error);
  sweep = good, sweep.factor = nullptr;
  EXPECT_THROW(column_sweep(sweep, {}), Error);
  sweep = good, sweep.grid = SweepGrid::int8, sweep.tops = w.data();
  EXPECT_THROW(column_sweep(sweep, {}), Error);
  Executor on_gpu;
  on_gpu.device = 0;
  EXPECT_THROW(swap_pairs({1, 4, w.data(), w.data(), w.data(), mask.data(), 0, 1}, on_gpu), Error);
  EXPECT_THROW(swap_pairs({1, 4, w.data(), w.data(), w.data(), mask.data(), -1, 1}, {}), Error);
  EXPECT_THROW(swap_pairs({1, 4, w.data(), nullptr, w.data(), mask.data(), 0, 1}, {}), Error);
}

}  // namespace
}  // namespace sparseloom
