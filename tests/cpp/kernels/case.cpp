#include "kernels/case.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "core/half.h"
#include "core/rng.h"
#include "kernels/cpu/kernels.h"
#include "plan/schedule.h"
#include "runtime/cpu.h"

namespace sparseloom::testing {
namespace {

constexpr int kGuard = 64;
constexpr std::byte kPoison{0xff};  // all ones is a NaN in every dtype

double random_value(core::Rng& rng, bool integers) {
  return integers ? static_cast<double>(rng.below(7)) - 3 : 2 * rng.uniform() - 1;
}

// A table of values repeated: drawing and rounding each of tens of millions would take most of the tests' time.
void fill(Matrix& matrix, core::Rng rng, bool integers) {
  constexpr std::int64_t kTable = 8191;  // a prime: rows do not repeat at any block's period
  Matrix table(matrix.dtype, 1, kTable, 0);
  for (std::int64_t i = 0; i < kTable; ++i) table.set(0, i, random_value(rng, integers));
  const auto size = static_cast<std::int64_t>(size_of(matrix.dtype));
  std::int64_t next = 0;
  for (std::int64_t r = 0; r < matrix.rows; ++r)
    for (std::int64_t c = 0, run; c < matrix.cols; c += run) {
      run = std::min(matrix.cols - c, kTable - next);
      std::memcpy(static_cast<std::byte*>(matrix.data()) + (r * matrix.stride + c) * size, table.bytes.data() + next * size,
                  static_cast<std::size_t>(run * size));
      next = (next + run) % kTable;
    }
}

double rounded(DType dtype, double value) {
  std::byte element[8];
  store(dtype, element, 0, value);
  return load(dtype, element, 0);
}

}  // namespace

std::string describe(const Case& c) {
  return std::string(name_of(c.direction)) + " " + name_of(c.dtype) + " m=" + std::to_string(c.m) + " " + std::to_string(c.rows) +
         "x" + std::to_string(c.cols) + " block " + to_string(c.block) + " density " + std::to_string(c.density) + " bias " +
         std::to_string(c.bias) + " act " + name_of(c.activation) + " padding " + std::to_string(c.stride_padding);
}

double load(DType dtype, const void* data, std::int64_t i) {
  const auto* p = static_cast<const std::byte*>(data) + i * static_cast<std::int64_t>(size_of(dtype));
  if (dtype == DType::f32) {
    float v;
    std::memcpy(&v, p, sizeof v);
    return v;
  }
  std::uint16_t bits;
  std::memcpy(&bits, p, sizeof bits);
  return dtype == DType::f16 ? core::to_f32(core::F16{bits}) : core::to_f32(core::Bf16{bits});
}

void store(DType dtype, void* data, std::int64_t i, double value) {
  auto* p = static_cast<std::byte*>(data) + i * static_cast<std::int64_t>(size_of(dtype));
  if (dtype == DType::f32) {
    const float v = static_cast<float>(value);
    std::memcpy(p, &v, sizeof v);
    return;
  }
  const std::uint16_t bits = dtype == DType::f16 ? core::to_f16(value).bits : core::to_bf16(value).bits;
  std::memcpy(p, &bits, sizeof bits);
}

double activate(Activation activation, double x) {
  switch (activation) {
    case Activation::none: return x;
    case Activation::relu: return x < 0 ? 0 : x;
    case Activation::gelu_erf: return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
    case Activation::gelu_tanh:
      return x / (1 + std::exp(-2 * std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));  // = 0.5 x (1 + tanh u)
    case Activation::silu: return x / (1 + std::exp(-x));
  }
  return x;
}

Matrix::Matrix(DType dtype_, std::int64_t rows_, std::int64_t cols_, std::int64_t padding)
    : dtype(dtype_),
      rows(rows_),
      cols(cols_),
      stride(cols_ + padding),
      offset(padding),
      bytes(static_cast<std::size_t>(padding + (rows > 0 ? (rows - 1) * stride + cols : 0)) * size_of(dtype) + kGuard, kPoison) {}

bool Matrix::padding_untouched() const {
  const std::int64_t size = static_cast<std::int64_t>(size_of(dtype)), end = static_cast<std::int64_t>(bytes.size());
  const auto poisoned = [&](std::int64_t first, std::int64_t last) {
    return std::all_of(bytes.begin() + first, bytes.begin() + std::min(last, end), [](std::byte b) { return b == kPoison; });
  };
  if (rows == 0 || cols == 0) return poisoned(0, end);
  bool untouched = poisoned(0, offset * size);
  for (std::int64_t r = 0; r < rows; ++r)
    untouched &= poisoned((offset + r * stride + cols) * size, r + 1 < rows ? (offset + (r + 1) * stride) * size : end);
  return untouched;
}

Instance::Instance(const Case& c_)
    : c(c_),
      x(c.dtype, c.m, c.cols, c.stride_padding),
      dy(c.dtype, c.m, c.rows, c.stride_padding),
      values(c.dtype, 0, 0, 0),
      bias(c.dtype, 1, c.rows, c.stride_padding) {
  const core::Rng rng(c.seed);
  core::Rng picks = rng.split(0);
  crow.push_back(0);
  const std::int64_t block_rows = index().block_rows(), block_cols = index().block_cols();
  for (std::int64_t r = 0; r < block_rows; ++r) {
    const double density = c.skewed ? std::pow(c.density, static_cast<double>(r)) : c.density;
    for (std::int64_t b = 0; b < block_cols; ++b)
      if (picks.uniform() < density) col.push_back(static_cast<std::int32_t>(b));
    crow.push_back(static_cast<std::int32_t>(col.size()));
  }
  ccol.resize(static_cast<std::size_t>(block_cols) + 1);
  row.resize(col.size());
  slot.resize(col.size());
  transpose_index(index(), ccol.data(), row.data(), slot.data());
  cost_prefix = plan::cost_prefix(c.direction, index());
  values = Matrix(c.dtype, static_cast<std::int64_t>(col.size()) * c.block.rows, c.block.cols, 0);
  fill(x, rng.split(1), c.integers);
  fill(dy, rng.split(2), c.integers);
  fill(values, rng.split(3), c.integers);
  fill(bias, rng.split(4), c.integers);
  for (std::int64_t r = 0; r < block_rows; ++r)  // padding of ragged blocks is zero
    for (std::int64_t b = crow[r]; b < crow[r + 1]; ++b)
      for (std::int64_t i = 0; i < c.block.rows; ++i)
        for (std::int64_t j = 0; j < c.block.cols; ++j)
          if (r * c.block.rows + i >= c.rows || col[b] * c.block.cols + j >= c.cols) values.set(b * c.block.rows + i, j, 0);
}

IndexView Instance::index() const {
  return {c.rows, c.cols, c.block, static_cast<std::int64_t>(col.size()), crow.data(), col.data()};
}
TransposedView Instance::transposed() const { return {ccol.data(), row.data(), slot.data()}; }

Problem Instance::problem(int threads) const {
  Problem p;
  p.direction = c.direction;
  p.dtype = c.dtype;
  p.m = c.m, p.rows = c.rows, p.cols = c.cols;
  p.block = c.block;
  p.blocks = static_cast<std::int64_t>(col.size());
  p.bias = c.bias;
  p.activation = c.activation;
  p.threads = threads;
  return p;
}

std::int64_t Instance::out_rows() const { return c.direction == Direction::dw ? values.rows : c.m; }
std::int64_t Instance::out_cols() const {
  return c.direction == Direction::forward ? c.rows : c.direction == Direction::dx ? c.cols : values.cols;
}

Instance::Answer Instance::answer() {
  const std::size_t size = static_cast<std::size_t>(out_rows() * out_cols());
  Answer a{std::vector<double>(size), std::vector<double>(size), std::vector<double>(size)};
  std::vector<float> sums(size);
  const auto add = [&](std::int64_t at, double left, double right) {
    a.exact[static_cast<std::size_t>(at)] += left * right;
    a.magnitude[static_cast<std::size_t>(at)] += std::abs(left * right);
    sums[static_cast<std::size_t>(at)] += static_cast<float>(left) * static_cast<float>(right);
  };
  for (std::int64_t r = 0; r < index().block_rows(); ++r)
    for (std::int64_t b = crow[r]; b < crow[r + 1]; ++b)
      for (std::int64_t i = 0; i < c.block.rows && r * c.block.rows + i < c.rows; ++i)
        for (std::int64_t j = 0; j < c.block.cols && col[b] * c.block.cols + j < c.cols; ++j) {
          const std::int64_t o = r * c.block.rows + i, k = col[b] * c.block.cols + j, v = b * c.block.rows + i;
          const double w = values.at(v, j);
          for (std::int64_t t = 0; t < c.m; ++t) {
            if (c.direction == Direction::forward)
              add(t * c.rows + o, x.at(t, k), w);
            else if (c.direction == Direction::dx)
              add(t * c.cols + k, dy.at(t, o), w);
            else
              add(v * values.cols + j, dy.at(t, o), x.at(t, k));
          }
        }
  for (std::size_t i = 0; i < size; ++i) {
    a.plain[i] = sums[i];
    if (c.direction == Direction::forward) {
      const double b = c.bias ? bias.at(0, static_cast<std::int64_t>(i) % c.rows) : 0;
      a.exact[i] = activate(c.activation, a.exact[i] + b);
      a.plain[i] = activate(c.activation, a.plain[i] + b);
    }
    a.plain[i] = rounded(c.dtype, a.plain[i]);
  }
  return a;
}

Matrix Instance::run(const kernels::Kernel& kernel, const Executor& executor) {
  Matrix out(c.dtype, out_rows(), out_cols(), c.direction == Direction::dw ? 0 : c.stride_padding);
  const std::size_t declared = kernel.info.workspace_bytes(problem(executor.num_threads));
  const std::size_t allocated = (declared + 2 * kGuard - 1) / kGuard * kGuard;
  const std::unique_ptr<std::byte, decltype(&std::free)> workspace(static_cast<std::byte*>(std::aligned_alloc(64, allocated)),
                                                                   &std::free);
  std::fill_n(workspace.get(), allocated, kPoison);
  kernels::MatmulArgs args;
  args.direction = c.direction;
  args.dtype = c.dtype;
  args.activation = c.activation;
  args.m = c.m;
  Matrix& a = c.direction == Direction::forward ? x : dy;
  args.a = a.data(), args.a_stride = a.stride;
  if (c.direction == Direction::dw) args.b = x.data(), args.b_stride = x.stride;
  args.index = index();
  args.transposed = transposed();
  args.values = values.data();
  args.bias = c.bias ? bias.data() : nullptr;
  args.out = out.data(), args.out_stride = out.stride;
  args.cost_prefix = c.direction == Direction::dw ? nullptr : cost_prefix.data();
  args.workspace = workspace.get();
  kernel.launch(args, executor);
  EXPECT_TRUE(out.padding_untouched()) << kernel.info.name << " wrote outside the output: " << describe(c);
  EXPECT_TRUE(std::all_of(workspace.get() + declared, workspace.get() + allocated, [](std::byte b) { return b == kPoison; }))
      << kernel.info.name << " overran its workspace: " << describe(c);
  return out;
}

std::vector<const kernels::Kernel*> runnable(const Problem& problem) {
  const plan::Machine machine{runtime::active_isa(), {}};
  std::vector<const kernels::Kernel*> list;
  for (const kernels::Kernel& kernel : kernels::cpu_kernels())
    if (kernel.info.refusal(problem, machine).empty()) list.push_back(&kernel);
  return list;
}

void expect_accurate(Instance& instance, const Matrix& out, const Instance::Answer& answer) {
  constexpr std::int64_t kTileRows = 16;
  const std::int64_t tile_cols = instance.c.direction == Direction::forward ? instance.c.block.rows : instance.c.block.cols;
  for (std::int64_t r0 = 0; r0 < out.rows; r0 += kTileRows)
    for (std::int64_t c0 = 0; c0 < out.cols; c0 += tile_cols) {
      double error = 0, plain = 0, norm = 0;
      for (std::int64_t r = r0; r < std::min(out.rows, r0 + kTileRows); ++r)
        for (std::int64_t c = c0; c < std::min(out.cols, c0 + tile_cols); ++c) {
          const std::size_t i = static_cast<std::size_t>(r * out.cols + c);
          const double difference = std::abs(out.at(r, c) - answer.exact[i]);
          error = std::max(error, std::isnan(difference) ? INFINITY : difference);
          plain = std::max(plain, std::abs(answer.plain[i] - answer.exact[i]));
          norm = std::max(norm, answer.magnitude[i]);
        }
      ASSERT_LE(error, 2 * plain + 0x1p-23 * norm) << describe(instance.c) << " tile at " << r0 << ", " << c0;
    }
}

Executor backwards(int num_threads) {
  Executor executor;
  executor.num_threads = num_threads;
  executor.parallel_for = [](void*, std::int64_t count, RangeBody body) {
    for (std::int64_t i = count; i-- > 0;) body(i, i + 1);
  };
  return executor;
}

}  // namespace sparseloom::testing
