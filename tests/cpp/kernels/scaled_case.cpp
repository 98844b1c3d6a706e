#include "kernels/scaled_case.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "core/rng.h"
#include "kernels/amx_emulated.h"
#include "kernels/bsr_linear/rows.h"
#include "runtime/cpu.h"
#include "sparseloom/generic/float8.h"

namespace sparseloom::testing {
namespace {

// Any byte but f8's NaN.
std::byte random_byte(core::Rng& rng, DType dtype) {
  auto bits = static_cast<std::uint8_t>(rng.below(256));
  if (dtype == DType::f8e4m3 && (bits & 0x7f) == 0x7f) bits ^= 0x10;
  return static_cast<std::byte>(bits);
}

void fill(Matrix& matrix, core::Rng rng) {
  for (std::int64_t r = 0; r < matrix.rows; ++r)
    for (std::int64_t c = 0; c < matrix.cols; ++c)
      static_cast<std::byte*>(matrix.data())[r * matrix.stride + c] = random_byte(rng, matrix.dtype);
}

std::vector<float> scales(core::Rng rng, std::int64_t count) {
  std::vector<float> list(static_cast<std::size_t>(count));
  for (float& scale : list) scale = static_cast<float>((0.1 + rng.uniform()) / 128);
  return list;
}

// Row after row: reading elements one by one by their dtype takes most of the tests' time.
std::vector<float> widened(const Matrix& matrix) {
  std::vector<float> all;
  for (std::int64_t r = 0; r < matrix.rows; ++r)
    for (std::int64_t c = 0; c < matrix.cols; ++c) all.push_back(static_cast<float>(matrix.at(r, c)));
  return all;
}

}  // namespace

std::string describe(const ScaledCase& c) {
  return std::string(name_of(c.dtype)) + " to " + name_of(c.out) + " m=" + std::to_string(c.m) + " " +
         std::to_string(c.rows) + "x" + std::to_string(c.cols) + " block " + to_string(c.block) +
         " density " + std::to_string(c.density) + " scales " + (c.x_each ? "each/" : "one/") +
         (c.w_each ? "each" : "one") + " bias " + std::to_string(c.bias) + " act " + name_of(c.activation) +
         " padding " + std::to_string(c.stride_padding) + " values + " + std::to_string(c.values_shift) +
         (c.skewed ? " skewed" : "") + (c.fast_accum ? " fast_accum" : "");
}

ScaledInstance::ScaledInstance(const ScaledCase& c_)
    : c(c_),
      x(c.dtype, c.m, c.cols, c.stride_padding),
      values(c.dtype, 0, 0, 0),
      bias(c.out, 1, c.rows, c.stride_padding),
      x_scale(scales(core::Rng(c.seed).split(3), c.x_each ? c.m : 1)),
      w_scale(scales(core::Rng(c.seed).split(4), c.w_each ? c.rows : 1)) {
  const core::Rng rng(c.seed);
  core::Rng picks = rng.split(0), biases = rng.split(5);
  crow.push_back(0);
  for (std::int64_t r = 0; r < index().block_rows(); ++r) {
    const double density = c.skewed ? std::pow(c.density, static_cast<double>(r)) : c.density;
    for (std::int64_t b = 0; b < index().block_cols(); ++b)
      if (picks.uniform() < density) col.push_back(static_cast<std::int32_t>(b));
    crow.push_back(static_cast<std::int32_t>(col.size()));
  }
  crow.shrink_to_fit(), col.shrink_to_fit();
  values =
      Matrix(c.dtype, static_cast<std::int64_t>(col.size()) * c.block.rows, c.block.cols, 0, c.values_shift);
  fill(x, rng.split(1));
  fill(values, rng.split(2));
  for (std::int64_t o = 0; o < c.rows; ++o) bias.set(0, o, 2 * biases.uniform() - 1);
  for (std::int64_t r = 0, b = 0; r < index().block_rows(); ++r)
    for (; b < crow[static_cast<std::size_t>(r) + 1]; ++b)
      for (std::int64_t i = 0; i < c.block.rows; ++i)
        for (std::int64_t j = 0; j < c.block.cols; ++j)
          if (r * c.block.rows + i >= c.rows || col[static_cast<std::size_t>(b)] * c.block.cols + j >= c.cols)
            values.set(b * c.block.rows + i, j, 0);
}

IndexView ScaledInstance::index() const {
  return {c.rows, c.cols, c.block, static_cast<std::int64_t>(col.size()), crow.data(), col.data()};
}

ScaledProblem ScaledInstance::problem(int threads) const {
  ScaledProblem p;
  p.dtype = c.dtype, p.out = c.out, p.m = c.m, p.rows = c.rows, p.cols = c.cols, p.block = c.block;
  p.blocks = static_cast<std::int64_t>(col.size()), p.bias = c.bias, p.activation = c.activation,
  p.threads = threads;
  p.fast_accum = c.fast_accum;
  return p;
}

MatmulArgs ScaledInstance::args() {
  MatmulArgs args;
  args.dtype = c.dtype, args.out_dtype = c.out, args.activation = c.activation, args.m = c.m;
  args.a = x.data(), args.a_stride = x.stride;
  args.index = index();
  args.values = values.data();
  args.bias = c.bias ? bias.data() : nullptr;
  args.a_scale = x_scale.data(), args.a_scale_each = c.x_each && c.m > 1;
  args.w_scale = w_scale.data(), args.w_scale_each = c.w_each && c.rows > 1;
  args.fast_accum = c.fast_accum;
  return args;
}

void ScaledInstance::fill_x(double value) {
  for (std::int64_t t = 0; t < c.m; ++t)
    for (std::int64_t i = 0; i < c.cols; ++i) x.set(t, i, value);
}

void ScaledInstance::fill_values(double value) {
  for (std::int64_t r = 0; r < index().block_rows(); ++r)
    for (std::int64_t b = crow[static_cast<std::size_t>(r)]; b < crow[static_cast<std::size_t>(r) + 1]; ++b)
      for (std::int64_t i = 0; i < c.block.rows && r * c.block.rows + i < c.rows; ++i)
        for (std::int64_t j = 0;
             j < c.block.cols && col[static_cast<std::size_t>(b)] * c.block.cols + j < c.cols; ++j)
          values.set(b * c.block.rows + i, j, value);
}

Matrix ScaledInstance::run(const kernels::ScaledKernel& kernel, const Executor& executor) {
  Matrix out(c.out, c.m, c.rows, c.stride_padding);
  const auto planned =
      kernels::bsr_linear::ask(kernel, problem(executor.num_threads), {runtime::active_isa(), {}, {}});
  Scratch workspace(planned.workspace_bytes);
  MatmulArgs call = args();
  call.out = out.data(), call.out_stride = out.stride;
  call.workspace = workspace.data();
  calling([&] { return kernel.name + (" " + describe(c)); });
  EXPECT_EQ(kernel.launch(call, planned.schedule, executor), 0) << kernel.name;
  EXPECT_TRUE(out.padding_untouched()) << kernel.name << " wrote outside the output: " << describe(c);
  EXPECT_FALSE(workspace.overrun()) << kernel.name << " overran its workspace: " << describe(c);
  return out;
}

void ScaledInstance::expect_right(const Matrix& out) {
  const bool exact_sums = c.dtype == DType::i8;
  constexpr double kUlp = 0x1p-24;  // half an ulp of fp32, relative; bf16 has 8 bits
  const double out_ulp = c.out == DType::bf16 ? 0x1p-8 : kUlp;
  const std::vector<float> inputs = widened(x), weights = widened(values);
  for (std::int64_t o = 0; o < c.rows; ++o) {
    const std::int64_t r = o / c.block.rows;
    const float ws = w_scale[c.w_each ? static_cast<std::size_t>(o) : 0];
    const double b = c.bias ? bias.at(0, o) : 0;
    for (std::int64_t t = 0; t < c.m; ++t) {
      double sum = 0, norm = 0;  // of i8 both are exact
      for (std::int64_t block = crow[static_cast<std::size_t>(r)];
           block < crow[static_cast<std::size_t>(r) + 1]; ++block) {
        const std::int64_t first = std::int64_t{col[static_cast<std::size_t>(block)]} * c.block.cols;
        const float* const in = inputs.data() + t * c.cols + first;
        const float* const w = weights.data() + (block * c.block.rows + o % c.block.rows) * c.block.cols;
        for (std::int64_t i = 0; i < std::min<std::int64_t>(c.cols - first, c.block.cols); ++i) {
          const double product = static_cast<double>(in[i]) * w[i];
          sum += product, norm += std::abs(product);
        }
      }
      const float xs = x_scale[c.x_each ? static_cast<std::size_t>(t) : 0];
      const double actual = out.at(t, o);
      if (exact_sums && (c.activation == Activation::none || c.activation == Activation::relu)) {
        const float scaled = std::fma(static_cast<float>(sum) * xs, ws, static_cast<float>(b));
        std::byte element[4];
        store(c.out, element, 0, c.activation == Activation::relu ? std::max(scaled, 0.0f) : scaled);
        ASSERT_EQ(actual, load(c.out, element, 0)) << describe(c) << " at " << t << ", " << o;
      }
      // Every activation's slope but relu2's is below 1.2; its exponential and quotient cost a few ulp, and
      // f8's sums round at each addition, in the worst order by some hundred ulp of the norm here.
      const double z = static_cast<double>(xs) * ws * sum + b, exact = activate(c.activation, z);
      const double magnitude =
          std::abs(static_cast<double>(xs) * ws) * (exact_sums ? std::abs(sum) : norm) + std::abs(b);
      const double terms = magnitude * slope(c.activation, z);
      ASSERT_LE(std::abs(actual - exact),
                out_ulp * std::abs(exact) + (exact_sums ? 8 : 100) * kUlp * terms + 1e-37)
          << describe(c) << " at " << t << ", " << o;
    }
  }
}

std::vector<const kernels::ScaledKernel*> scaled_runnable(const ScaledProblem& problem) {
  const auto runs = [&](const kernels::ScaledKernel& kernel) {
    return kernels::bsr_linear::ask(kernel, problem, {runtime::active_isa(), {}, {}}).refusal.empty();
  };
  std::vector<const kernels::ScaledKernel*> list;
  for (const kernels::ScaledKernel& kernel : kernels::cpu_scaled_kernels())
    if (runs(kernel)) list.push_back(&kernel);
#if defined(__x86_64__)
  if (runs(emulated_amx_int8_kernel())) list.push_back(&emulated_amx_int8_kernel());
#endif
  static const kernels::ScaledKernel reference = kernels::scaled_reference_kernel();
  list.push_back(&reference);
  return list;
}

}  // namespace sparseloom::testing
