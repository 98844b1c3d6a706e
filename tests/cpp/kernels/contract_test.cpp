// What holds beside accuracy: the same bits for any number of threads, NaN where it belongs, refusals with
// their reason.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/bsr_linear/rows.h"
#include "kernels/case.h"
#include "runtime/cpu.h"

namespace sparseloom::testing {
namespace {

constexpr Direction kDirections[] = {Direction::forward, Direction::dx, Direction::dw};
constexpr DType kTypes[] = {DType::f32, DType::f16, DType::bf16};

TEST(Threads, AnyNumberGivesTheSameBits) {
  for (const Direction direction : kDirections)
    for (const DType dtype : kTypes)
      for (const std::int64_t m : {5, 100}) {
        Case c;
        c.direction = direction, c.dtype = dtype, c.m = m, c.rows = 520, c.cols = 720, c.block = {16, 32},
        c.density = 0.5;
        Instance instance(c);
        for (const kernels::Kernel* kernel : runnable(instance.problem(1))) {
          const Matrix one = instance.run(*kernel, Executor::serial());
          for (const int threads : {2, 3, 7})
            EXPECT_EQ(instance.run(*kernel, backwards(threads)).bytes, one.bytes)
                << kernel->name << " on " << threads;
          EXPECT_EQ(instance.run(*kernel, Executor::pool(3)).bytes, one.bytes)
              << kernel->name << " on the pool";
        }
      }
}

TEST(Threads, SkewedRowsAreRight) {
  for (const Direction direction : kDirections) {
    Case c;
    c.direction = direction, c.m = 60, c.rows = 512, c.cols = 640, c.block = {32, 16}, c.density = 0.6,
    c.skewed = true;
    Instance instance(c);
    const Instance::Answer answer = instance.answer();
    for (const kernels::Kernel* kernel : runnable(instance.problem(7))) {
      SCOPED_TRACE(kernel->name);
      expect_accurate(instance, instance.run(*kernel, backwards(7)), answer);
    }
  }
}

// A NaN or Inf may reach only the outputs whose stored blocks multiply it.
TEST(NotANumber, StaysUnderStoredBlocks) {
  for (const double poison :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()})
    for (const DType dtype : kTypes)
      for (const std::int64_t m : {6, 60}) {
        Case c;
        c.dtype = dtype, c.m = m, c.rows = 90, c.cols = 100, c.block = {16, 16}, c.density = 0.3;
        Instance instance(c);
        const std::int64_t column = 40, token = 3;
        instance.x.set(token, column, poison);
        for (const kernels::Kernel* kernel : runnable(instance.problem(1))) {
          const Matrix out = instance.run(*kernel, Executor::serial());
          for (std::int64_t t = 0; t < c.m; ++t)
            for (std::int64_t o = 0; o < c.rows; ++o) {
              const std::int64_t r = o / 16;
              bool stored = false;
              for (std::int64_t b = instance.crow[r]; b < instance.crow[r + 1]; ++b)
                stored |= instance.col[b] == column / 16;
              ASSERT_EQ(!std::isfinite(out.at(t, o)), stored && t == token)
                  << kernel->name << " at " << t << ", " << o;
            }
        }
      }
}

TEST(NotANumber, PassesThroughActivationsAndBias) {
  for (const Activation activation : functions()) {
    Case c;
    c.m = 20, c.rows = 40, c.cols = 64, c.block = {8, 16}, c.bias = true, c.activation = activation;
    Instance instance(c);
    instance.bias.set(0, 5, std::numeric_limits<double>::quiet_NaN());
    for (const kernels::Kernel* kernel : runnable(instance.problem(1))) {
      const Matrix out = instance.run(*kernel, Executor::serial());
      for (std::int64_t t = 0; t < c.m; ++t)
        for (std::int64_t o = 0; o < c.rows; ++o) ASSERT_EQ(std::isnan(out.at(t, o)), o == 5) << kernel->name;
    }
  }
}

// Padded rows and columns of dW stay zero even when the other operand is infinite.
TEST(NotANumber, PaddingOfDwIsZero) {
  for (const DType dtype : kTypes) {
    Case c;
    c.direction = Direction::dw, c.dtype = dtype, c.m = 9, c.rows = 27, c.cols = 45, c.block = {16, 32},
    c.density = 1;
    Instance instance(c);
    instance.x.set(2, 44, std::numeric_limits<double>::infinity());
    instance.dy.set(2, 26, std::numeric_limits<double>::infinity());
    for (const kernels::Kernel* kernel : runnable(instance.problem(1))) {
      const Matrix out = instance.run(*kernel, Executor::serial());
      for (std::int64_t r = 0; r < instance.index().block_rows(); ++r)
        for (std::int64_t b = instance.crow[r]; b < instance.crow[r + 1]; ++b)
          for (std::int64_t i = 0; i < 16; ++i)
            for (std::int64_t j = 0; j < 32; ++j)
              if (r * 16 + i >= c.rows || instance.col[b] * 32 + j >= c.cols) {
                ASSERT_EQ(out.at(b * 16 + i, j), 0) << kernel->name;
              }
    }
  }
}

TEST(Activations, ExtremesMatchTheirLimits) {
  for (const Activation activation : functions()) {
    Case c;
    c.m = 17, c.rows = 40, c.cols = 8, c.block = {8, 8}, c.density = 0, c.bias = true,
    c.activation = activation;
    Instance instance(c);
    for (std::int64_t o = 0; o < c.rows; ++o) instance.bias.set(0, o, static_cast<double>(o - 20) * 1.7);
    instance.bias.set(0, 0, -1e4), instance.bias.set(0, 39, 1e4);
    for (const kernels::Kernel* kernel : runnable(instance.problem(1))) {
      const Matrix out = instance.run(*kernel, Executor::serial());
      for (std::int64_t o = 0; o < c.rows; ++o) {
        const double expected = activate(activation, instance.bias.at(0, o));
        // Relative in the left tail too, where e^(-x^2 / 2) turns an ulp of its argument into x^2 ulps.
        const double scale =
            std::abs(expected) * (1 + std::pow(std::min(std::abs(instance.bias.at(0, o)), 40.0), 2));
        EXPECT_NEAR(out.at(3, o), expected, 0x1p-22 * scale + 1e-37)
            << kernel->name << " at " << instance.bias.at(0, o);
      }
    }
  }
}

TEST(Refusals, OfEightBitsSayWhyNot) {
  ScaledProblem i8;
  i8.dtype = DType::i8, i8.m = 64, i8.rows = 64, i8.cols = 64, i8.block = {8, 8}, i8.blocks = 4;
  ScaledProblem f8 = i8;
  f8.dtype = DType::f8e4m3;
  const plan::Machine generic{runtime::Isa::generic, {}, {}}, all{runtime::Isa::amx, {}, {}};
  for (const kernels::ScaledKernel& kernel : kernels::cpu_scaled_kernels()) {
    using kernels::bsr_linear::ask;
    EXPECT_NE(ask(kernel, i8, generic).refusal.find("SPARSELOOM_ISA"), std::string::npos) << kernel.name;
    EXPECT_EQ(ask(kernel, i8, all).refusal, "") << kernel.name;
    EXPECT_NE(ask(kernel, f8, all).refusal.find("int8 only"), std::string::npos) << kernel.name;
  }
}

TEST(Refusals, SayWhyNot) {
  Problem p;
  p.m = 64, p.rows = 64, p.cols = 64, p.block = {8, 8}, p.blocks = 4, p.threads = 1;
  const plan::Machine generic{runtime::Isa::generic, {}, {}}, all{runtime::Isa::amx, {}, {}};
  for (const kernels::Kernel& kernel : kernels::cpu_kernels()) {
    const auto refusal = [&kernel](const Problem& problem, const plan::Machine& machine) {
      return kernels::bsr_linear::ask(kernel, problem, machine).refusal;
    };
    EXPECT_NE(refusal(p, generic).find("SPARSELOOM_ISA"), std::string::npos) << kernel.name;
    Problem f64 = p;
    f64.dtype = DType::f64, f64.m = 1;
    EXPECT_NE(refusal(f64, all).find("f64"), std::string::npos) << kernel.name;
    const bool decode = std::string(kernel.name).find("decode") != std::string::npos;
    if (decode) {
      EXPECT_NE(refusal(p, all).find("64"), std::string::npos) << kernel.name;
      Problem dw = p;
      dw.direction = Direction::dw, dw.m = 1;
      EXPECT_NE(refusal(dw, all).find("dw"), std::string::npos) << kernel.name;
    } else {
      Problem bf16 = p;
      bf16.dtype = DType::bf16;
      EXPECT_EQ(refusal(bf16, all), "") << kernel.name;
    }
  }
}

TEST(Rates, AreMeasuredForWhatTheMachineRuns) {
  const plan::MachineRates rates = kernels::measure_rates(runtime::detected_isa());
  const runtime::Isa isa = runtime::detected_isa();
  EXPECT_EQ(rates.f32_avx2 > 0, isa.has(runtime::Isa::avx2));
  EXPECT_EQ(rates.f32_avx512 > 0, isa.has(runtime::Isa::avx512));
  EXPECT_EQ(rates.i8_avx512 > 0, isa.has(runtime::Isa::avx512_vnni));
  EXPECT_EQ(rates.i8_amx > 0, isa.has(runtime::Isa::amx));
  EXPECT_EQ(rates.bf16_avx512 > 0, isa.has(runtime::Isa::avx512_bf16));
  EXPECT_EQ(rates.bf16_amx > 0, isa.has(runtime::Isa::amx));
  EXPECT_GT(rates.copy_bytes, 0);
}

}  // namespace
}  // namespace sparseloom::testing
