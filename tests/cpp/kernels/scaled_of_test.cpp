// The products of 8-bit weights on the CPU, 2:4 and bitmaps, by every row, against sums in fp64; and what
// plans refuse.
#include "sparseloom/scaled_of.h"

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
#include "core/check.h"
#include "core/counting.h"
#include "core/expect_error.h"
#include "core/rng.h"
#include "kernels/matrix.h"
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

// The index of a weight of drawn places.
template <class L>
struct Index;

template <>
struct Index<Semi24> {
  Index(std::int64_t rows, std::int64_t cols, core::Rng& rng) : view{rows, cols, nullptr} {
    static constexpr unsigned kPairs[] = {0b0100, 0b1000, 0b1100, 0b1001, 0b1101, 0b1110};
    positions.resize(static_cast<std::size_t>(rows * view.position_bytes()));
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t g = 0; g < view.groups(); ++g) {
        auto& byte = positions[static_cast<std::size_t>(r * view.position_bytes() + g / 2)];
        byte = static_cast<std::uint8_t>(byte | kPairs[rng.below(6)] << (g % 2 * 4));
      }
    positions.shrink_to_fit();
    view.positions = positions.data();
  }
  Semi24View view;
  std::vector<std::uint8_t> positions;
};

// Row 0 is full and row 1 empty, so that vectors are read whole and not at all; the others store a half.
template <>
struct Index<Bitmap> {
  Index(std::int64_t rows, std::int64_t cols, core::Rng& rng) {
    view.rows = rows, view.cols = cols;
    bits.resize(static_cast<std::size_t>(rows * view.row_bytes()));
    crow.push_back(0);
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < cols; ++c)
        if (r == 0 || (r > 1 && rng.below(2) == 0)) {
          auto& byte = bits[static_cast<std::size_t>(r * view.row_bytes() + c / 8)];
          byte = static_cast<std::uint8_t>(byte | 1 << c % 8), ++view.stored;
        }
      crow.push_back(static_cast<std::int32_t>(view.stored));
    }
    bits.shrink_to_fit(), crow.shrink_to_fit();
    view.bits = bits.data(), view.crow = crow.data();
    Bitmap::validate("test", view);
  }
  BitmapView view;
  std::vector<std::uint8_t> bits;
  std::vector<std::int32_t> crow;
};

template <class L>
struct Operands {
  using V = ScaledOf<L>;

  explicit Operands(const Case& given)
      : c(given), rng(static_cast<std::uint64_t>(c.m * 5 + c.rows * 3 + c.cols)), index(c.rows, c.cols, rng) {
    values.resize(static_cast<std::size_t>(L::stored(view())));
    for (std::int64_t r = 0; r < c.rows; ++r)
      L::for_each_in_row(view(), r, [&](std::int64_t, std::int64_t slot) {
        values[static_cast<std::size_t>(slot)] = byte_of(rng);
      });
    values.shrink_to_fit();
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

  const typename L::View& view() const { return index.view; }

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

  typename V::Problem problem() const {
    auto problem = V::describe(view(), c.dtype, c.out, c.m);
    problem.bias = c.bias, problem.activation = c.activation;
    return problem;
  }

  std::vector<std::byte> run(const Executor& executor, const std::string& kernel) const {
    const auto plan = V::plan(problem(), executor, kernel);
    EXPECT_EQ(plan->kernel_name, kernel);
    std::vector<std::byte> out(static_cast<std::size_t>(c.m * (c.rows + 1)) * size_of(c.out),
                               std::byte{0xa5});
    testing::Scratch workspace(plan->workspace_bytes);
    MatmulArgs call = args();
    call.out = out.data(), call.out_stride = c.rows + 1;
    testing::calling([&] {
      return kernel + (" of 8-bit " + std::string(L::kId) + " " + name_of(c.dtype)) +
             " m=" + std::to_string(c.m) + " " + core::shape(c.rows, c.cols);
    });
    V::run(*plan, call, view(), workspace.span(), executor);
    EXPECT_FALSE(workspace.overrun()) << kernel << " overran its workspace";
    return out;
  }

  void expect_right(const std::vector<std::byte>& out) const {
    for (std::int64_t t = 0; t < c.m; ++t)
      for (std::int64_t r = 0; r < c.rows; ++r) {
        double sum = 0, norm = 0;
        L::for_each_in_row(view(), r, [&](std::int64_t column, std::int64_t slot) {
          const double product =
              load(c.dtype, x.data(), t * (c.cols + 3) + column) * load(c.dtype, values.data(), slot);
          sum += product, norm += std::abs(product);
        });
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
  core::Rng rng;
  Index<L> index;
  std::vector<std::byte> values, x, bias;
  std::vector<float> x_scale, w_scale;
};

template <class L>
class Scaled : public ::testing::Test {};
using Layouts = ::testing::Types<Semi24, Bitmap>;
TYPED_TEST_SUITE(Scaled, Layouts);

TYPED_TEST(Scaled, EveryRowComputesTheProduct) {
  for (DType dtype : {DType::i8, DType::f8e4m3})
    for (const Case& c : {Case{dtype, DType::f32, 1, 1, 1, false, false, false, Activation::none},
                          Case{dtype, DType::bf16, 3, 17, 30, true, true, true, Activation::relu},
                          Case{dtype, DType::f32, 2, 33, 640, false, false, true, Activation::none},
                          Case{dtype, DType::f32, 9, 40, 257, true, false, true, Activation::none},
                          Case{dtype, DType::f32, 71, 21, 4200, true, true, false, Activation::none},
                          Case{dtype, DType::bf16, 33, 9, 64, false, true, false, Activation::relu}}) {
      const Operands<TypeParam> o(c);
      int ran = 0;
      for (const Candidate& each :
           ScaledOf<TypeParam>::plan(o.problem(), Executor::serial(), "reference")->candidates) {
        if (!each.refusal.empty() && each.refusal.find("only by name") == std::string::npos) continue;
        SCOPED_TRACE(std::string(name_of(dtype)) + " " + each.kernel + " m=" + std::to_string(c.m));
        const std::vector<std::byte> out = o.run(Executor::serial(), each.kernel);
        o.expect_right(out);
        EXPECT_EQ(o.run(testing::backwards(3), each.kernel), out);
        ++ran;
      }
      EXPECT_GE(ran, 2);
    }
}

TYPED_TEST(Scaled, OpensOneRegion) {
  for (DType dtype : {DType::i8, DType::f8e4m3}) {
    const Operands<TypeParam> o({dtype, DType::f32, 5, 100, 300, true, true, true, Activation::none});
    int regions = 0;
    const std::vector<std::byte> out = o.run(testing::counting(regions), "expand");
    EXPECT_EQ(regions, 1);
    EXPECT_EQ(out, o.run(Executor::serial(), "expand"));
    EXPECT_EQ(out, o.run(Executor::pool(4), "expand"));
  }
}

TYPED_TEST(Scaled, NanOfXReachesWhatTheCaveatSays) {
  const Case c{DType::f8e4m3, DType::f32, 2, 5, 8, false, false, false, Activation::none};
  Operands<TypeParam> o(c);
  o.x[3] = std::byte{0x7f};
  const std::vector<std::byte> reference = o.run(Executor::serial(), "reference"),
                               expand = o.run(Executor::serial(), "expand");
  for (std::int64_t r = 0; r < c.rows; ++r) {
    bool stored = false;
    TypeParam::for_each_in_row(o.view(), r,
                               [&](std::int64_t column, std::int64_t) { stored |= column == 3; });
    EXPECT_EQ(std::isnan(load(DType::f32, reference.data(), r)), stored);
    EXPECT_TRUE(std::isnan(load(DType::f32, expand.data(), r)));
    EXPECT_FALSE(std::isnan(load(DType::f32, expand.data(), c.rows + 1 + r)));
  }
}

TYPED_TEST(Scaled, EmptyProductsPlanAndRun) {
  for (const auto& [m, rows, cols] : {std::array<std::int64_t, 3>{0, 4, 8}, {3, 0, 8}, {3, 4, 0}}) {
    const Operands<TypeParam> o({DType::i8, DType::f32, m, rows, cols, false, false, true, Activation::none});
    for (const char* kernel : {"expand", "reference"}) o.expect_right(o.run(testing::backwards(2), kernel));
  }
}

TEST(Semi24Scaled, RefusesWhatItDoesNotCompute) {
  const Semi24View view{8, 64, nullptr};
  const auto plan = [&](DType dtype, DType out, auto&& change) {
    ScaledLinearProblem problem = Semi24Scaled::describe(view, dtype, out, 4);
    change(problem);
    return Semi24Scaled::plan(problem, Executor::serial());
  };
  const auto as_is = [](ScaledLinearProblem&) {};
  expect_error("plan", {"i8 or f8e4m3", "bf16"}, [&] { plan(DType::bf16, DType::f32, as_is); });
  expect_error("plan", {"bf16 or f32", "f16"}, [&] { plan(DType::i8, DType::f16, as_is); });
  expect_error("plan", {"residual"},
               [&] { plan(DType::i8, DType::f32, [](ScaledLinearProblem& p) { p.residual = true; }); });
  expect_error("plan", {"131071", "131072"},
               [&] { plan(DType::i8, DType::f32, [](ScaledLinearProblem& p) { p.cols = 262144; }); });
  const auto strict = plan(DType::f8e4m3, DType::f32, [](ScaledLinearProblem& p) { p.strict = true; });
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
