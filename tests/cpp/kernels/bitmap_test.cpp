// The products of bitmap weights on the CPU, by every row that does not refuse unless it is named, against
// fp64. The operands and the answers are those of the CSR weight with the same elements.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "core/backwards.h"
#include "kernels/bitmap_linear/rows.h"
#include "kernels/csr_case.h"
#include "kernels/long_sums.h"
#include "sparseloom/bitmap_linear.h"

namespace sparseloom {
namespace {

using testing::CsrCase;
using testing::CsrInstance;
using testing::Matrix;

struct Bits {
  std::vector<std::uint8_t> bytes;
  BitmapView w;

  explicit Bits(const CsrView& csr) {
    w.rows = csr.rows, w.cols = csr.cols, w.stored = csr.stored, w.crow = csr.crow;
    bytes.resize(static_cast<std::size_t>(w.rows * w.row_bytes()));
    for (std::int64_t row = 0; row < w.rows; ++row)
      Csr::for_each_in_row(csr, row, [&](std::int64_t col, std::int64_t) {
        auto& byte = bytes[static_cast<std::size_t>(row * w.row_bytes() + col / 8)];
        byte = static_cast<std::uint8_t>(byte | 1 << col % 8);
      });
    bytes.shrink_to_fit();
    w.bits = bytes.data();
    Bitmap::validate("test", w);
  }
};

BitmapLinear::Problem problem_of(const CsrInstance& instance, const BitmapView& w) {
  const CsrCase& c = instance.c;
  BitmapLinear::Problem problem = BitmapLinear::describe(w, c.direction, c.dtype, c.m);
  problem.bias = c.bias, problem.residual = c.residual, problem.activation = c.activation;
  return problem;
}

Matrix run(CsrInstance& instance, const BitmapView& w, const std::string& kernel, const Executor& executor) {
  const auto plan = BitmapLinear::plan(problem_of(instance, w), executor, kernel);
  Matrix out = instance.output();
  MatmulArgs args;
  args.a = instance.a.data(), args.a_stride = instance.a.stride, args.b = instance.b.data(),
  args.b_stride = instance.b.stride;
  args.values = instance.values.data();
  if (instance.c.bias) args.bias = instance.bias.data();
  if (instance.c.residual)
    args.residual = instance.residual.data(), args.residual_stride = instance.residual.stride;
  args.out = out.data(), args.out_stride = out.stride;
  testing::Scratch workspace(plan->workspace_bytes);
  BitmapLinear::run(*plan, args, w, workspace.span(), executor);
  EXPECT_TRUE(out.padding_untouched()) << kernel << " wrote outside the output: " << instance.c.text();
  EXPECT_FALSE(workspace.overrun()) << kernel << " overran its workspace: " << instance.c.text();
  return out;
}

void check(const CsrCase& c) {
  CsrInstance instance(c);
  const Bits bits(instance.w);
  const Executor serial = Executor::serial(), threads = testing::backwards(3);
  for (const Candidate& each :
       BitmapLinear::plan(problem_of(instance, bits.w), serial, "reference")->candidates) {
    if (!each.refusal.empty() && each.refusal.find("only by name") == std::string::npos) continue;
    const Matrix out = run(instance, bits.w, each.kernel, serial);
    instance.expect_accurate(each.kernel, out);
    EXPECT_EQ(out.bytes, run(instance, bits.w, each.kernel, threads).bytes) << each.kernel << " " << c.text();
  }
}

#if defined(__x86_64__)
// A machine that halves vectors of 512 bits takes bf16 twice as long, and gradients longer.
TEST(BitmapPredictions, CountHalvedVectors) {
  LinearProblem p;
  p.dtype = DType::bf16, p.m = 256, p.rows = p.cols = 2048, p.stored = 1 << 20, p.threads = 2;
  plan::Machine whole;
  whole.isa = runtime::Isa::avx512_bf16 | runtime::Isa::avx512_vbmi2;
  whole.rates.f32_avx2 = 120e9, whole.rates.f32_avx512 = 240e9, whole.rates.copy_bytes = 60e9;
  plan::Machine halved = whole;
  halved.rates.f32_avx512 = 120e9;
  for (const kernels::BitmapKernel& kernel : kernels::bitmap_kernels())
    for (const Direction direction : {Direction::forward, Direction::dx}) {
      p.direction = direction;
      const double times = kernel.predict_us(p, halved) / kernel.predict_us(p, whole);
      EXPECT_NEAR(times, direction == Direction::forward ? 2 : 2.3, 0.05) << kernel.name;
    }
}
#endif

TEST(BitmapProducts, AreAccurateForEverySize) {
  for (DType dtype : {DType::f32, DType::f16, DType::bf16})
    for (Direction direction : {Direction::forward, Direction::dx, Direction::dw})
      for (auto [rows, cols] : {std::pair<std::int64_t, std::int64_t>{1, 4}, {7, 1}, {37, 130}, {120, 37}})
        for (std::int64_t m : {1, 2, 3, 8, 17, 32, 70, 333}) check({dtype, m, rows, cols, direction});
}

TEST(BitmapProducts, AreAccurateWhereSumsAreLong) {
  for (std::int64_t m : {1, 5})
    for (Direction direction : {Direction::forward, Direction::dx})
      check({DType::f32, m, direction == Direction::forward ? 2 : 16384,
             direction == Direction::forward ? 65536 : 70, direction});
  check({DType::f32, 16384, 5, 70, Direction::dw});
}

// A pass has 256 tokens of 65536 columns, or 512 of dX of 16384 rows.
TEST(BitmapProducts, TakeManyTokensInPasses) {
  for (DType dtype : {DType::f32, DType::bf16}) {
    CsrCase c{dtype, 300, 2, 65536, Direction::forward};
    c.bias = c.residual = true;
    check(c);
    for (std::int64_t m : {514, 600}) check({dtype, m, 16384, 5, Direction::dx});
  }
}

TEST(BitmapProducts, AddUpInShortChains) {
  CsrInstance instance({DType::f32, 64, 2, 65536, Direction::forward});
  const std::int64_t full = 1, begin = instance.crow[full];
  for (std::int64_t t = 0; t < instance.a.rows; ++t)
    for (std::int64_t i = 0; i < instance.a.cols; ++i) instance.a.set(t, i, std::abs(instance.a.at(t, i)));
  for (std::int64_t i = 0; i < instance.w.stored; ++i)
    instance.values.set(0, i, std::abs(instance.values.at(0, i)));
  const Bits bits(instance.w);
  for (const Candidate& each :
       BitmapLinear::plan(problem_of(instance, bits.w), Executor::serial())->candidates) {
    if (!each.refusal.empty()) continue;
    const Matrix out = run(instance, bits.w, each.kernel, Executor::serial());
    testing::LongSums sums;
    for (std::int64_t t = 0; t < out.rows; ++t)
      sums.add(out.at(t, full), instance.a.cols, [&](std::int64_t i) {
        return std::pair<double, double>{instance.a.at(t, i), instance.values.at(0, begin + i)};
      });
    sums.expect_short_chains(each.kernel);
  }
}

TEST(BitmapProducts, HaveAnEpilogue) {
  for (DType dtype : {DType::f32, DType::bf16})
    for (std::int64_t m : {1, 12}) {
      CsrCase c{dtype, m, 61, 80};
      c.activation = Activation::relu, c.bias = true, c.residual = m > 1;
      check(c);
    }
}

}  // namespace
}  // namespace sparseloom
