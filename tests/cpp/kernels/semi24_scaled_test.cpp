// The products of 8-bit 2:4 weights on the CPU, by every row, against sums in fp64; and what plans refuse.
#include "sparseloom/semi24_scaled.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "core/allocation.h"
#include "core/backwards.h"
#include "core/counting.h"
#include "core/expect_error.h"
#include "core/rng.h"
#include "sparseloom/generic/scalar.h"

namespace sparseloom {
namespace {

using kernels::load;
using kernels::store;
using test::expect_error;

struct Case {
  DType dtype, out;
  std::int64_t m, rows, cols;
  bool x_each, w_each, bias;
  Activation activation;
};

struct Operands {
  explicit Operands(const Case& given) : c(given), view{c.rows, c.cols, nullptr} {
    core::Rng rng(static_cast<std::uint64_t>(c.m * 5 + c.rows * 3 + c.cols));
    static constexpr unsigned kPairs[] = {0b0100, 0b1000, 0b1100, 0b1001, 0b1101, 0b1110};
    positions.resize(static_cast<std::size_t>(c.rows * view.position_bytes()));
    values.resize(static_cast<std::size_t>(c.rows * view.row_values()));
    for (std::int64_t r = 0; r < c.rows; ++r)
      for (std::int64_t g = 0; g < view.groups(); ++g) {
        const unsigned pair = kPairs[rng.below(6)];
        auto& byte = positions[static_cast<std::size_t>(r * view.position_bytes() + g / 2)];
        byte = static_cast<std::uint8_t>(byte | pair << (g % 2 * 4));
        for (int e = 0; e < 2; ++e)
          values[static_cast<std::size_t>(r * view.row_values() + 2 * g + e)] =
              4 * g + static_cast<std::int64_t>(pair >> (2 * e) & 3) < c.cols ? byte_of(rng) : std::byte{0};
      }
    view.positions = positions.data();
    for (std::int64_t i = 0; i < c.m * (c.cols + 3); ++i) x.push_back(byte_of(rng));
    x.shrink_to_fit();
    for (std::int64_t i = 0; i < (c.x_each ? c.m : 1); ++i)
      x_scale.push_back(static_cast<float>(0.5 + rng.uniform()));
    for (std::int64_t i = 0; i < (c.w_each ? c.rows : 1); ++i)
      w_scale.push_back(static_cast<float>(0.5 + rng.uniform()));
    x_scale.shrink_to_fit(), w_scale.shrink_to_fit();
    bias.resize(static_cast<std::size_t>(c.rows) * size_of(c.out));
    for (std::int64_t i = 0; i < c.rows; ++i) store(c.out, bias.data(), i, 2 * rng.uniform() - 1);
  }

  std::byte byte_of(core::Rng& rng) const {
    auto bits = static_cast<std::uint8_t>(rng.below(256));
    if (c.dtype == DType::f8e4m3 && (bits & 0x7f) == 0x7f) bits ^= 0x10;  // no NaN
    return static_cast<std::byte>(bits);
  }

  MatmulArgs args() const {
    MatmulArgs args;
    args.a = x.data(), args.a_stride = c.cols + 3, args.values = values.data();
    args.bias = c.bias ? bias.data() : nullptr;
    args.a_scale = x_scale.data(), args.a_scale_each = c.x_each;
    args.w_scale = w_scale.data(), args.w_scale_each = c.w_each;
    return args;
  }

  std::vector<std::byte> run(const Executor& executor, const char* kernel) const {
    Semi24ScaledProblem problem = Semi24Scaled::describe(view, c.dtype, c.out, c.m);
    problem.bias = c.bias, problem.activation = c.activation;
    const auto plan = Semi24Scaled::plan(problem, executor, kernel);
    EXPECT_EQ(plan->kernel_name, kernel);
    std::vector<std::byte> out(static_cast<std::size_t>(c.m * (c.rows + 1)) * size_of(c.out),
                               std::byte{0xa5});
    Workspace workspace;
    MatmulArgs call = args();
    call.out = out.data(), call.out_stride = c.rows + 1;
    testing::calling([&] {
      return kernel + (" of 8-bit 2:4 " + std::string(name_of(c.dtype))) + " m=" + std::to_string(c.m) +
             " [" + std::to_string(c.rows) + ", " + std::to_string(c.cols) + "]";
    });
    Semi24Scaled::run(*plan, call, view, workspace.at_least(plan->workspace_bytes), executor);
    return out;
  }

  void expect_right(const std::vector<std::byte>& out) const {
    for (std::int64_t t = 0; t < c.m; ++t)
      for (std::int64_t r = 0; r < c.rows; ++r) {
        double sum = 0, norm = 0;
        for (std::int64_t g = 0; g < view.groups(); ++g)
          for (int e = 0; e < 2; ++e) {
            const std::int64_t column = 4 * g + (view.group(r, g) >> (2 * e) & 3);
            if (column >= c.cols) continue;
            const double product = load(c.dtype, x.data(), t * (c.cols + 3) + column) *
                                   load(c.dtype, values.data(), r * view.row_values() + 2 * g + e);
            sum += product, norm += std::abs(product);
          }
        const float xs = x_scale[c.x_each ? static_cast<std::size_t>(t) : 0],
                    ws = w_scale[c.w_each ? static_cast<std::size_t>(r) : 0];
        const float shift = c.bias ? static_cast<float>(load(c.out, bias.data(), r)) : 0.0f;
        float y = std::fma(static_cast<float>(sum) * xs, ws, shift);
        if (c.activation == Activation::relu) y = std::max(y, 0.0f);
        std::byte rounded[8];
        store(c.out, rounded, 0, y);
        const double is = load(c.out, out.data(), t * (c.rows + 1) + r), should = load(c.out, rounded, 0);
        if (c.dtype == DType::i8) {
          ASSERT_EQ(is, should) << "token " << t << ", output " << r;
        } else {
          const double ulp = c.out == DType::bf16 ? 0x1p-8 : 0x1p-24;
          ASSERT_NEAR(is, should, ulp * std::abs(should) + 64 * 0x1p-24 * norm * xs * ws)
              << "token " << t << ", output " << r;
        }
      }
  }

  Case c;
  Semi24View view;
  std::vector<std::uint8_t> positions;
  std::vector<std::byte> values, x, bias;
  std::vector<float> x_scale, w_scale;
};

TEST(Semi24Scaled, EveryRowComputesTheProduct) {
  for (DType dtype : {DType::i8, DType::f8e4m3})
    for (const Case& c : {Case{dtype, DType::f32, 1, 1, 1, false, false, false, Activation::none},
                          Case{dtype, DType::bf16, 3, 17, 30, true, true, true, Activation::relu},
                          Case{dtype, DType::f32, 9, 40, 257, true, false, true, Activation::none},
                          Case{dtype, DType::bf16, 33, 9, 64, false, true, false, Activation::relu}})
      for (const char* kernel : {"expand", "reference"}) {
        SCOPED_TRACE(std::string(name_of(dtype)) + " " + kernel + " m=" + std::to_string(c.m));
        const Operands o(c);
        const std::vector<std::byte> out = o.run(Executor::serial(), kernel);
        o.expect_right(out);
        EXPECT_EQ(o.run(testing::backwards(3), kernel), out);
      }
}

TEST(Semi24Scaled, OpensOneRegion) {
  for (DType dtype : {DType::i8, DType::f8e4m3}) {
    const Operands o({dtype, DType::f32, 5, 100, 300, true, true, true, Activation::none});
    int regions = 0;
    const std::vector<std::byte> out = o.run(testing::counting(regions), "expand");
    EXPECT_EQ(regions, 1);
    EXPECT_EQ(out, o.run(Executor::serial(), "expand"));
    EXPECT_EQ(out, o.run(Executor::pool(4), "expand"));
  }
}

TEST(Semi24Scaled, NanOfXReachesWhatTheCaveatSays) {
  const Case c{DType::f8e4m3, DType::f32, 2, 5, 8, false, false, false, Activation::none};
  Operands o(c);
  o.x[3] = std::byte{0x7f};
  const std::vector<std::byte> reference = o.run(Executor::serial(), "reference"),
                               expand = o.run(Executor::serial(), "expand");
  for (std::int64_t r = 0; r < c.rows; ++r) {
    bool stored = false;
    Semi24::for_each_in_row(o.view, r, [&](std::int64_t column, std::int64_t) { stored |= column == 3; });
    EXPECT_EQ(std::isnan(load(DType::f32, reference.data(), r)), stored);
    EXPECT_TRUE(std::isnan(load(DType::f32, expand.data(), r)));
    EXPECT_FALSE(std::isnan(load(DType::f32, expand.data(), c.rows + 1 + r)));
  }
}

TEST(Semi24Scaled, EmptyProductsPlanAndRun) {
  for (const auto& [m, rows, cols] : {std::array<std::int64_t, 3>{0, 4, 8}, {3, 0, 8}, {3, 4, 0}}) {
    const Operands o({DType::i8, DType::f32, m, rows, cols, false, false, true, Activation::none});
    for (const char* kernel : {"expand", "reference"}) o.expect_right(o.run(testing::backwards(2), kernel));
  }
}

TEST(Semi24Scaled, RefusesWhatItDoesNotCompute) {
  const Semi24View view{8, 64, nullptr};
  const auto plan = [&](DType dtype, DType out, auto&& change) {
    Semi24ScaledProblem problem = Semi24Scaled::describe(view, dtype, out, 4);
    change(problem);
    return Semi24Scaled::plan(problem, Executor::serial());
  };
  const auto as_is = [](Semi24ScaledProblem&) {};
  expect_error("plan", {"i8 or f8e4m3", "bf16"}, [&] { plan(DType::bf16, DType::f32, as_is); });
  expect_error("plan", {"bf16 or f32", "f16"}, [&] { plan(DType::i8, DType::f16, as_is); });
  expect_error("plan", {"residual"},
               [&] { plan(DType::i8, DType::f32, [](Semi24ScaledProblem& p) { p.residual = true; }); });
  expect_error("plan", {"131071", "131072"},
               [&] { plan(DType::i8, DType::f32, [](Semi24ScaledProblem& p) { p.cols = 262144; }); });
  const auto strict = plan(DType::f8e4m3, DType::f32, [](Semi24ScaledProblem& p) { p.strict = true; });
  EXPECT_EQ(strict->kernel_name, "expand");
  EXPECT_NE(strict->describe().find("strict forbids the reference kernel"), std::string::npos);
  const auto other = plan(DType::f8e4m3, DType::bf16, as_is);
  EXPECT_NE(Semi24Scaled::key(strict->problem), Semi24Scaled::key(other->problem));
  MatmulArgs args;
  expect_error("semi24_scaled_linear", {"scales", "null"},
               [&] { Semi24Scaled::run(*other, args, view, {}, Executor::serial()); });
}

}  // namespace
}  // namespace sparseloom
