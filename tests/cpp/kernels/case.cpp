#include "kernels/case.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include "core/float8.h"
#include "core/half.h"
#include "core/rng.h"
#include "kernels/amx_emulated.h"
#include "kernels/cpu/kernels.h"
#include "plan/schedule.h"
#include "runtime/cpu.h"

namespace sparseloom::testing {
namespace {

double random_value(core::Rng& rng, bool integers) {
  return integers ? static_cast<double>(rng.below(7)) - 3 : 2 * rng.uniform() - 1;
}

// A table of values repeated: drawing and rounding each of tens of millions would take most of the tests'
// time.
void fill(Matrix& matrix, core::Rng rng, bool integers) {
  constexpr std::int64_t kTable = 8191;  // a prime: rows do not repeat at any block's period
  Matrix table(matrix.dtype, 1, kTable, 0);
  for (std::int64_t i = 0; i < kTable; ++i) table.set(0, i, random_value(rng, integers));
  const auto size = static_cast<std::int64_t>(size_of(matrix.dtype));
  std::int64_t next = 0;
  for (std::int64_t r = 0; r < matrix.rows; ++r)
    for (std::int64_t c = 0, run; c < matrix.cols; c += run) {
      run = std::min(matrix.cols - c, kTable - next);
      std::memcpy(static_cast<std::byte*>(matrix.data()) + (r * matrix.stride + c) * size,
                  table.bytes.data() + next * size, static_cast<std::size_t>(run * size));
      next = (next + run) % kTable;
    }
}

double rounded(DType dtype, double value) {
  std::byte element[8];
  store(dtype, element, 0, value);
  return load(dtype, element, 0);
}

// A matrix as fp32, row after row: exactly, and as the plain product's operand. Tables, since the answer's
// inner loops then vectorise: on thousands of cases they are most of the tests' time.
struct Table {
  std::int64_t cols;
  std::vector<float> exact, plain;

  Table(const Matrix& matrix, bool tf32)
      : cols(matrix.cols), exact(static_cast<std::size_t>(matrix.rows * matrix.cols)) {
    for (std::int64_t r = 0; r < matrix.rows; ++r)
      for (std::int64_t c = 0; c < cols; ++c)
        exact[static_cast<std::size_t>(r * cols + c)] = static_cast<float>(matrix.at(r, c));
    plain = exact;
    if (tf32) std::transform(plain.begin(), plain.end(), plain.begin(), to_tf32);
  }

  // [blocks * bm, bn] -> [blocks * bn, bm]
  void transpose_blocks(BlockShape block) {
    for (std::vector<float>* list : {&exact, &plain}) {
      std::vector<float> turned(list->size());
      for (std::size_t first = 0; first < turned.size();
           first += static_cast<std::size_t>(block.rows * block.cols))
        for (std::int64_t i = 0; i < block.rows; ++i)
          for (std::int64_t j = 0; j < block.cols; ++j)
            turned[first + static_cast<std::size_t>(j * block.rows + i)] =
                (*list)[first + static_cast<std::size_t>(i * cols + j)];
      *list = std::move(turned);
    }
    cols = block.rows;
  }
};

// The three running sums of an answer; products arrive in the order that the plain one adds them in.
struct Sums {
  std::vector<double> exact, magnitude;
  std::vector<float> plain;

  explicit Sums(std::size_t size) : exact(size), magnitude(size), plain(size) {}

  // sums[at .. at + count) += left[l] * right[r .. r + count)
  void add(std::int64_t at, const Table& left, std::int64_t l, const Table& right, std::int64_t r,
           std::int64_t count) {
    double* const sum = exact.data() + at;
    double* const norm = magnitude.data() + at;
    float* const single = plain.data() + at;
    const double scalar = left.exact[static_cast<std::size_t>(l)];
    const float plain_scalar = left.plain[static_cast<std::size_t>(l)];
    const float* const vector = right.exact.data() + r;
    const float* const plain_vector = right.plain.data() + r;
    for (std::int64_t i = 0; i < count; ++i) {
      const double product = scalar * vector[i];
      sum[i] += product;
      norm[i] += std::abs(product);
      single[i] += plain_scalar * plain_vector[i];
    }
  }
};

}  // namespace

std::string describe(const Case& c) {
  return std::string(name_of(c.direction)) + " " + name_of(c.dtype) + " m=" + std::to_string(c.m) + " " +
         std::to_string(c.rows) + "x" + std::to_string(c.cols) + " block " + to_string(c.block) +
         " density " + std::to_string(c.density) + " bias " + std::to_string(c.bias) + " act " +
         name_of(c.activation) + " padding " + std::to_string(c.stride_padding) + " values + " +
         std::to_string(c.values_shift) + (c.residual ? " residual" : "") +
         (c.accumulate ? " accumulate" : "") + (c.tf32 ? " tf32" : "") + (c.skewed ? " skewed" : "");
}

double load(DType dtype, const void* data, std::int64_t i) {
  const auto* p = static_cast<const std::byte*>(data) + i * static_cast<std::int64_t>(size_of(dtype));
  if (dtype == DType::f32) {
    float v;
    std::memcpy(&v, p, sizeof v);
    return v;
  }
  if (dtype == DType::i8) return static_cast<std::int8_t>(*p);
  if (dtype == DType::f8e4m3) return core::to_f32(core::F8E4M3{static_cast<std::uint8_t>(*p)});
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
  if (is_scaled(
          dtype)) {  // the byte that stands for it: 8-bit operands are drawn as bytes, few are set by value
    for (int bits = 0; bits < 256; ++bits) {
      *p = static_cast<std::byte>(bits);
      if (load(dtype, p, 0) == value) return;
    }
    std::abort();
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
      return x /
             (1 + std::exp(-2 * std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));  // = 0.5 x (1 + tanh u)
    case Activation::silu: return x / (1 + std::exp(-x));
  }
  return x;
}

float to_tf32(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  if ((bits & 0x7f800000u) == 0x7f800000u) return x;
  bits = (bits + 0x1000u) &
         ~0x1fffu;  // half of the last kept bit; the carry may run into the exponent, up to inf: right
  std::memcpy(&x, &bits, sizeof bits);
  return x;
}

Matrix::Matrix(DType dtype_, std::int64_t rows_, std::int64_t cols_, std::int64_t padding,
               std::int64_t offset_)
    : dtype(dtype_),
      rows(rows_),
      cols(cols_),
      stride(cols_ + padding),
      offset(offset_),
      bytes(static_cast<std::size_t>(offset + (rows > 0 ? (rows - 1) * stride + cols : 0)) * size_of(dtype) +
                kGuard,
            kPoison) {}

void Matrix::poison(std::int64_t r, std::int64_t c) {
  const auto size = static_cast<std::int64_t>(size_of(dtype));
  std::fill_n(bytes.begin() + (offset + r * stride + c) * size, size, kPoison);
}

bool Matrix::padding_untouched() const {
  const std::int64_t size = static_cast<std::int64_t>(size_of(dtype)),
                     end = static_cast<std::int64_t>(bytes.size());
  const auto poisoned = [&](std::int64_t first, std::int64_t last) {
    return std::all_of(bytes.begin() + first, bytes.begin() + std::min(last, end),
                       [](std::byte b) { return b == kPoison; });
  };
  if (rows == 0 || cols == 0) return poisoned(0, end);
  bool untouched = poisoned(0, offset * size);
  for (std::int64_t r = 0; r < rows; ++r)
    untouched &= poisoned((offset + r * stride + cols) * size,
                          r + 1 < rows ? (offset + (r + 1) * stride) * size : end);
  return untouched;
}

Instance::Instance(const Case& c_)
    : c(c_),
      x(c.dtype, c.m, c.cols, c.stride_padding),
      dy(c.dtype, c.m, c.rows, c.stride_padding),
      values(c.dtype, 0, 0, 0),
      bias(c.dtype, 1, c.rows, c.stride_padding),
      residual(c.dtype, c.m, c.rows, c.stride_padding),
      before(DType::f32, 0, 0, 0) {
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
  values =
      Matrix(c.dtype, static_cast<std::int64_t>(col.size()) * c.block.rows, c.block.cols, 0, c.values_shift);
  fill(x, rng.split(1), c.integers);
  fill(dy, rng.split(2), c.integers);
  fill(values, rng.split(3), c.integers);
  fill(bias, rng.split(4), c.integers);
  if (c.residual) fill(residual, rng.split(6), c.integers);
  if (c.accumulate) {
    before = Matrix(DType::f32, values.rows, values.cols, 0, c.values_shift);
    fill(before, rng.split(5), c.integers);
  }
  for (std::int64_t r = 0; r < block_rows; ++r)  // padding of ragged blocks is zero
    for (std::int64_t b = crow[r]; b < crow[r + 1]; ++b)
      for (std::int64_t i = 0; i < c.block.rows; ++i)
        for (std::int64_t j = 0; j < c.block.cols; ++j)
          if (r * c.block.rows + i >= c.rows || col[b] * c.block.cols + j >= c.cols) {
            values.set(b * c.block.rows + i, j, 0);
            if (c.accumulate) before.set(b * c.block.rows + i, j, 0);
          }
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
  p.residual = c.residual;
  p.activation = c.activation;
  p.accumulate = c.accumulate;
  p.threads = threads;
  return p;
}

Problem Instance::cuda_problem(int device) const {
  Problem p = problem(1);
  p.device = device;
  p.tf32 = c.tf32;
  return p;
}

std::int64_t Instance::out_rows() const { return c.direction == Direction::dw ? values.rows : c.m; }
std::int64_t Instance::out_cols() const {
  return c.direction == Direction::forward ? c.rows : c.direction == Direction::dx ? c.cols : values.cols;
}

Matrix Instance::poisoned_output() const {
  if (c.accumulate) return before;
  const bool dw = c.direction == Direction::dw;
  return {c.dtype, out_rows(), out_cols(), dw ? 0 : c.stride_padding, dw ? c.values_shift : c.stride_padding};
}

Instance::Answer Instance::answer() {
  const bool forward = c.direction == Direction::forward, dw = c.direction == Direction::dw;
  const Matrix none(c.dtype, 0, 0, 0);
  const Table in(c.direction == Direction::dx ? none : x, c.tf32), gradient(forward ? none : dy, c.tf32);
  Table weights(dw ? none : values, c.tf32);
  if (forward) weights.transpose_blocks(c.block);
  const std::int64_t bm = c.block.rows, bn = c.block.cols;
  Sums sums(static_cast<std::size_t>(out_rows() * out_cols()));
  for (std::int64_t r = 0; r < index().block_rows(); ++r)
    for (std::int64_t b = crow[r]; b < crow[r + 1]; ++b) {
      const std::int64_t o = r * bm, k = col[b] * bn, height = std::min(bm, c.rows - o),
                         width = std::min(bn, c.cols - k);
      for (std::int64_t t = 0; t < c.m; ++t) {
        for (std::int64_t j = 0; forward && j < width; ++j)
          sums.add(t * c.rows + o, in, t * c.cols + k + j, weights, (b * bn + j) * bm, height);
        for (std::int64_t i = 0; !forward && i < height; ++i)
          if (dw)
            sums.add((b * bm + i) * bn, gradient, t * c.rows + o + i, in, t * c.cols + k, width);
          else
            sums.add(t * c.cols + k, gradient, t * c.rows + o + i, weights, (b * bm + i) * bn, width);
      }
    }
  Answer a{std::move(sums.exact), std::vector<double>(sums.plain.begin(), sums.plain.end()),
           std::move(sums.magnitude)};
  for (std::size_t i = 0; i < a.exact.size(); ++i) {
    if (forward) {
      const double b = c.bias ? bias.at(0, static_cast<std::int64_t>(i) % c.rows) : 0;
      const auto at = static_cast<std::int64_t>(i);
      const double more = c.residual ? residual.at(at / c.rows, at % c.rows) : 0;
      a.exact[i] = activate(c.activation, a.exact[i] + b) + more;
      a.plain[i] = activate(c.activation, a.plain[i] + b) + more;
      a.magnitude[i] += std::abs(b) + std::abs(more);
    }
    if (c.accumulate) {
      const double old = before.at(static_cast<std::int64_t>(i) / bn, static_cast<std::int64_t>(i) % bn);
      a.exact[i] += old, a.plain[i] += old, a.magnitude[i] += std::abs(old);
    }
    a.plain[i] = rounded(c.accumulate ? DType::f32 : c.dtype, a.plain[i]);
  }
  return a;
}

kernels::MatmulArgs Instance::args() {
  kernels::MatmulArgs args;
  args.direction = c.direction;
  args.dtype = c.dtype;
  args.activation = c.activation;
  args.m = c.m;
  args.tf32 = c.tf32;
  args.accumulate = c.accumulate;
  Matrix& a = c.direction == Direction::forward ? x : dy;
  args.a = a.data(), args.a_stride = a.stride;
  if (c.direction == Direction::dw) args.b = x.data(), args.b_stride = x.stride;
  args.index = index();
  args.transposed = transposed();
  args.values = values.data();
  args.bias = c.bias ? bias.data() : nullptr;
  if (c.residual) args.residual = residual.data(), args.residual_stride = residual.stride;
  return args;
}

Matrix Instance::run(const kernels::Kernel& kernel, const Executor& executor) {
  Matrix out = poisoned_output();
  const std::size_t declared =
      kernel.info.workspace_bytes(problem(executor.num_threads), {runtime::active_isa(), {}, {}});
  const std::size_t allocated = (declared + 2 * kGuard - 1) / kGuard * kGuard;
  const std::unique_ptr<std::byte, decltype(&std::free)> workspace(
      static_cast<std::byte*>(std::aligned_alloc(64, allocated)), &std::free);
  std::fill_n(workspace.get(), allocated, kPoison);
  kernels::MatmulArgs call = args();
  call.out = out.data(), call.out_stride = out.stride;
  call.cost_prefix = c.direction == Direction::dw ? nullptr : cost_prefix.data();
  call.workspace = workspace.get();
  EXPECT_EQ(kernel.launch(call, executor), 0) << kernel.info.name;
  EXPECT_TRUE(out.padding_untouched()) << kernel.info.name << " wrote outside the output: " << describe(c);
  EXPECT_TRUE(std::all_of(workspace.get() + declared, workspace.get() + allocated,
                          [](std::byte b) { return b == kPoison; }))
      << kernel.info.name << " overran its workspace: " << describe(c);
  return out;
}

std::vector<const kernels::Kernel*> runnable(const Problem& problem) {
  const plan::Machine machine{runtime::active_isa(), {}, {}};
  std::vector<const kernels::Kernel*> list;
  for (const kernels::Kernel& kernel : kernels::cpu_kernels())
    if (kernel.info.refusal(problem, machine).empty()) list.push_back(&kernel);
#if defined(__x86_64__)
  if (emulated_amx_kernel().info.refusal(problem, machine).empty()) list.push_back(&emulated_amx_kernel());
#endif
  return list;
}

void expect_accurate(Instance& instance, const Matrix& out, const Instance::Answer& answer) {
  constexpr std::int64_t kTileRows = 16;
  // An activation's exponential and quotient cost fp32 a few last bits of its own.
  // Tensor cores cut their sums off instead of rounding them: what 16 bits hide and an fp32 gradient shows.
  const bool fp32_gradient =
      instance.c.direction == Direction::dw && (instance.c.dtype == DType::f32 || instance.c.accumulate);
  const double floor = instance.c.activation == Activation::none && !fp32_gradient ? 0x1p-23 : 0x1p-22;
  const std::int64_t tile_cols =
      instance.c.direction == Direction::forward ? instance.c.block.rows : instance.c.block.cols;
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
      ASSERT_LE(error, 2 * plain + floor * norm) << describe(instance.c) << " tile at " << r0 << ", " << c0;
    }
}

void expect_exact(const Instance& instance, const Matrix& out, const Instance::Answer& answer) {
  for (std::int64_t r = 0; r < out.rows; ++r)
    for (std::int64_t c = 0; c < out.cols; ++c)
      ASSERT_EQ(out.at(r, c), rounded(out.dtype, answer.exact[static_cast<std::size_t>(r * out.cols + c)]))
          << describe(instance.c) << " at " << r << ", " << c;
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
