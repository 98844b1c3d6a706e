// The products of 2:4 weights on the CPU, by every row that does not refuse, against fp64.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "core/counting.h"
#include "core/rng.h"
#include "kernels/case.h"
#include "kernels/long_sums.h"
#include "kernels/matrix.h"
#include "kernels/runs.h"
#include "sparseloom/semi24_linear.h"

namespace sparseloom {
namespace {

using testing::Matrix, testing::load, testing::store;

constexpr DType kDTypes[] = {DType::f32, DType::f16, DType::bf16};

double rounded(DType dtype, double x) {
  double bytes;
  store(dtype, &bytes, 0, x);
  return load(dtype, &bytes, 0);
}

struct Semi24Case {
  DType dtype;
  std::int64_t m, rows, cols;
  Direction direction = Direction::forward;
  bool bias = false, residual = false;
  Activation activation = Activation::none;

  std::string text() const {
    return std::string(name_of(direction)) + " " + name_of(dtype) + " m=" + std::to_string(m) + " [" +
           std::to_string(rows) + ", " + std::to_string(cols) + "]";
  }
};

/// Random positions and values, operands with poison around them, and the answer.
struct Semi24Instance {
  Semi24Case c;
  Semi24View w;
  Matrix values, a, bias, residual;
  std::vector<std::uint8_t> positions;
  std::vector<double> exact, plain, norm;  // plain: by fp32 sums in order

  explicit Semi24Instance(const Semi24Case& given)
      : c(given),
        w{c.rows, c.cols, nullptr},
        values(c.dtype, c.rows, w.row_values(), 0),
        a(c.dtype, c.m, c.direction == Direction::forward ? c.cols : c.rows, 3),
        bias(c.dtype, 1, c.rows, 0),
        residual(c.dtype, c.m, c.rows, 5) {
    core::Rng rng(static_cast<std::uint64_t>(c.m * 7919 + c.rows * 31 + c.cols));
    const auto fill = [&](Matrix& matrix) {
      for (std::int64_t r = 0; r < matrix.rows; ++r)
        for (std::int64_t i = 0; i < matrix.cols; ++i) matrix.set(r, i, 2 * rng.uniform() - 1);
    };
    fill(values), fill(a), fill(bias), fill(residual);
    positions.resize(static_cast<std::size_t>(w.rows * w.position_bytes()));
    w.positions = positions.data();
    constexpr std::uint8_t kHalves[6] = {4, 8, 9, 12, 13, 14};
    for (std::int64_t row = 0; row < w.rows; ++row)
      for (std::int64_t g = 0; g < w.groups(); ++g) {
        const unsigned half =
            4 * g + 4 > c.cols ? (c.cols % 4 == 3 ? kHalves[rng.below(3)] : 4) : kHalves[rng.below(6)];
        positions[static_cast<std::size_t>(row * w.position_bytes() + g / 2)] |=
            static_cast<std::uint8_t>(half << (g % 2 * 4));
        if (4 * g + half / 4 >= c.cols) values.set(row, 2 * g + 1, 0);
      }
    Semi24::validate("test", w);
    Semi24::validate_values("test", w, c.dtype, values.data());
    answer();
  }

  std::int64_t out_cols() const { return c.direction == Direction::forward ? c.rows : c.cols; }

  void answer() {
    std::vector<std::vector<std::pair<std::int64_t, double>>> terms(  // of each output: index of a, weight
        static_cast<std::size_t>(out_cols()));
    for (auto& each : terms)
      each.reserve(static_cast<std::size_t>(c.direction == Direction::forward ? w.row_values() : c.rows));
    for (std::vector<double>* list : {&norm, &exact, &plain})
      list->reserve(static_cast<std::size_t>(c.m * out_cols()));
    for (std::int64_t row = 0; row < c.rows; ++row)
      Semi24::for_each_in_row(w, row, [&](std::int64_t col, std::int64_t slot) {
        const double weight = values.at(row, slot - row * w.row_values());
        if (c.direction == Direction::forward)
          terms[row].push_back({col, weight});
        else
          terms[col].push_back({row, weight});
      });
    for (std::int64_t t = 0; t < c.m; ++t)
      for (std::int64_t o = 0; o < out_cols(); ++o) {
        double sum = c.bias ? bias.at(0, o) : 0, size = std::abs(sum);
        float single = static_cast<float>(sum);
        for (const auto& [i, weight] : terms[o]) {
          sum += a.at(t, i) * weight, size += std::abs(a.at(t, i) * weight);
          single += static_cast<float>(a.at(t, i)) * static_cast<float>(weight);
        }
        const double more = c.residual ? residual.at(t, o) : 0;
        norm.push_back(size * testing::slope(c.activation, sum) + std::abs(more));
        exact.push_back(testing::activate(c.activation, sum) + more);
        plain.push_back(
            rounded(c.dtype, testing::activate(c.activation, static_cast<double>(single)) + more));
      }
  }

  Semi24Linear::Problem problem() const {
    Semi24Linear::Problem problem = Semi24Linear::describe(w, c.direction, c.dtype, c.m);
    problem.bias = c.bias, problem.residual = c.residual, problem.activation = c.activation;
    return problem;
  }

  Matrix run(const std::string& kernel, const Executor& executor) {
    const auto plan = Semi24Linear::plan(problem(), executor, kernel);
    Matrix out(c.dtype, c.m, out_cols(), 2);
    MatmulArgs args;
    args.a = a.data(), args.a_stride = a.stride, args.values = values.data();
    if (c.bias) args.bias = bias.data();
    if (c.residual) args.residual = residual.data(), args.residual_stride = residual.stride;
    args.out = out.data(), args.out_stride = out.stride;
    testing::Scratch workspace(plan->workspace_bytes);
    testing::calling([&] { return kernel + " of 2:4 " + c.text(); });
    Semi24Linear::run(*plan, args, w, workspace.span(), executor);
    EXPECT_TRUE(out.padding_untouched()) << kernel << " wrote outside the output: " << c.text();
    EXPECT_FALSE(workspace.overrun()) << kernel << " overran its workspace: " << c.text();
    return out;
  }

  /// Per tile of 8 outputs: the error is at most twice the plain product's, plus norm times eps.
  void expect_accurate(const std::string& kernel, const Matrix& out) const {
    const double floor = c.activation == Activation::none ? 0x1p-23 : 0x1p-22;
    for (std::int64_t t = 0; t < out.rows; ++t)
      for (std::int64_t first = 0; first < out.cols; first += 8) {
        double error = 0, allowed = 0, size = 0;
        for (std::int64_t o = first; o < std::min(first + 8, out.cols); ++o) {
          const auto i = static_cast<std::size_t>(t * out.cols + o);
          const double difference = std::abs(out.at(t, o) - exact[i]);
          error = std::max(error, std::isnan(difference) ? INFINITY : difference);
          allowed = std::max(allowed, 2 * std::abs(plain[i] - exact[i]));
          size = std::max(size, norm[i]);
        }
        ASSERT_LE(error, allowed + floor * size) << kernel << " " << c.text() << " at " << t << ", " << first;
      }
  }
};

std::vector<std::string> runnable(const Semi24Instance& instance, const Executor& executor) {
  std::vector<std::string> names;
  for (const Candidate& each : Semi24Linear::plan(instance.problem(), executor, "reference")->candidates)
    if (each.refusal.empty()) names.push_back(each.kernel);
  return names;
}

void check(const Semi24Case& c) {
  Semi24Instance instance(c);
  const Executor serial = Executor::serial(), threads = testing::backwards(3);
  for (const std::string& kernel : runnable(instance, serial)) {
    const Matrix out = instance.run(kernel, serial);
    instance.expect_accurate(kernel, out);
    EXPECT_EQ(out.bytes, instance.run(kernel, threads).bytes) << kernel << " " << c.text();
  }
}

TEST(Semi24Products, AreAccurateForEverySize) {
  for (DType dtype : kDTypes)
    for (auto [rows, cols] : {std::pair<std::int64_t, std::int64_t>{1, 4},
                              {7, 1},
                              {24, 128},
                              {37, 130},
                              {23, 131},
                              {50, 519},
                              {26, 640},
                              {300, 1020}})
      for (std::int64_t m : {1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16, 17, 39, 63, 97})
        check({dtype, m, rows, cols});
}

TEST(Semi24Products, AreAccurateForEveryWidth) {
  for (Direction direction : {Direction::forward, Direction::dx})
    for (std::int64_t cols = 1; cols <= 33; ++cols)
      for (std::int64_t m : {5, 18, 32, 70, 130}) check({DType::bf16, m, 21, 64 + cols, direction});
}

TEST(Semi24Products, OpenOneRegion) {
  for (DType dtype : kDTypes)
    for (std::int64_t m : {1, 12, 16}) {
      Semi24Instance instance({dtype, m, 300, 1020});
      for (const std::string& kernel : runnable(instance, Executor::serial())) {
        int regions = 0;
        const Matrix out = instance.run(kernel, testing::counting(regions));
        // The reference divides by tokens, and one of them does without a region.
        EXPECT_EQ(regions, kernel == "reference" && m == 1 ? 0 : 1) << kernel;
        EXPECT_EQ(out.bytes, instance.run(kernel, Executor::serial()).bytes) << kernel;
        EXPECT_EQ(out.bytes, instance.run(kernel, Executor::pool(4)).bytes) << kernel;
      }
    }
}

// Several passes over the tokens keep what they spread of so many columns at a time: 4096 for bf16.
TEST(Semi24Products, AreAccurateForWideRowsOfManyTokens) {
  for (DType dtype : kDTypes)
    for (std::int64_t m : {9, 16}) check({dtype, m, 4, 8300});
}

TEST(Semi24Products, AddLongRowsInShortChains) {
  for (std::int64_t m : {1, 4, 8, 16}) {
    Semi24Instance instance({DType::f32, m, 33, 131072});
    const Executor serial = Executor::serial();
    for (const std::string& kernel : runnable(instance, serial)) {
      if (kernel == "reference") continue;
      const Matrix out = instance.run(kernel, serial);
      testing::LongSums sums;
      for (std::int64_t o = 0; o < 33; ++o) {
        std::vector<std::pair<std::int64_t, std::int64_t>> stored;
        Semi24::for_each_in_row(instance.w, o, [&](std::int64_t col, std::int64_t slot) {
          stored.emplace_back(col, slot - o * instance.w.row_values());
        });
        for (std::int64_t t = 0; t < m; ++t)
          sums.add(out.at(t, o), std::ssize(stored), [&](std::int64_t i) {
            return std::pair{instance.a.at(t, stored[i].first), instance.values.at(o, stored[i].second)};
          });
      }
      sums.expect_short_chains(kernel + " " + instance.c.text());
    }
  }
}

TEST(Semi24Products, HaveAnEpilogue) {
  for (DType dtype : kDTypes)
    for (Activation activation : testing::activations())
      for (std::int64_t m : {1, 12}) {
        Semi24Case c{dtype, m, 61, 200};
        c.activation = activation, c.bias = true, c.residual = m > 1;
        check(c);
      }
}

TEST(Semi24Products, GiveDx) {
  for (DType dtype : kDTypes)
    for (const auto& [rows, cols] : {std::pair<std::int64_t, std::int64_t>{45, 203}, {1100, 530}, {3, 1}})
      // Vectors of tokens in twos and threes, and panels of them.
      for (std::int64_t m : {1, 5, 8, 20, 33, 56, 97}) check({dtype, m, rows, cols, Direction::dx});
}

TEST(Semi24Products, KeepNanToItsTokenAndOutput) {
  // A stored Inf and NaN reach their output alone; a NaN in x its token alone, whatever lies between.
  for (DType dtype : kDTypes) {
    Semi24Instance instance({dtype, 5, 30, 260});
    instance.values.set(11, 40, INFINITY), instance.values.set(17, 3, NAN), instance.a.set(2, 100, NAN);
    const Executor serial = Executor::serial();
    for (const std::string& kernel : runnable(instance, serial)) {
      const Matrix out = instance.run(kernel, serial);
      for (std::int64_t t = 0; t < 5; ++t)
        for (std::int64_t o = 0; o < 30; ++o)
          if (t != 2) {
            EXPECT_EQ(std::isfinite(out.at(t, o)), o != 11 && o != 17) << kernel << " " << t << ", " << o;
          }
      EXPECT_TRUE(std::isnan(out.at(2, 17))) << kernel;
    }
  }
}

TEST(Semi24Products, RunWhatThePlanSays) {
  for (const Direction direction : {Direction::forward, Direction::dx}) {
    Semi24Instance instance({DType::bf16, 3, 64, 256, direction});
    const Executor serial = Executor::serial();
    for (const std::string& kernel : runnable(instance, serial)) {
      if (kernel == "reference") continue;  // BSR's row of that name counts, LinearOf's does not
      const auto count = [&] {
        std::int64_t runs = 0;
        for (const auto& [name, times] : kernels::kernel_runs())
          if (name == kernel) runs = times;
        return runs;
      };
      const std::int64_t before = count();
      instance.run(kernel, serial);
      EXPECT_EQ(count(), before + 1) << kernel;
    }
  }
}

// dX adds a column's elements of all rows: no chain of them is longer than 512.
TEST(Semi24Products, AddLongColumnsInShortChains) {
  Semi24Instance instance({DType::f32, 9, 131072, 8, Direction::dx});
  const Executor serial = Executor::serial();
  for (const std::string& kernel : runnable(instance, serial)) {
    if (kernel == "reference") continue;
    const Matrix out = instance.run(kernel, serial);
    std::vector<std::vector<std::pair<std::int64_t, std::int64_t>>> stored(8);  // of each column
    for (std::int64_t row = 0; row < instance.w.rows; ++row)
      Semi24::for_each_in_row(instance.w, row, [&](std::int64_t col, std::int64_t slot) {
        stored[static_cast<std::size_t>(col)].emplace_back(row, slot - row * instance.w.row_values());
      });
    testing::LongSums sums;
    for (std::int64_t col = 0; col < 8; ++col)
      for (std::int64_t t = 0; t < 9; ++t) {
        const auto& of = stored[static_cast<std::size_t>(col)];
        sums.add(out.at(t, col), std::ssize(of), [&](std::int64_t i) {
          const auto& [row, slot] = of[static_cast<std::size_t>(i)];
          return std::pair{instance.a.at(t, row), instance.values.at(row, slot)};
        });
      }
    sums.expect_short_chains(kernel + " " + instance.c.text());
  }
}

}  // namespace
}  // namespace sparseloom
