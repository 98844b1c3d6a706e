#include "kernels/case.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "core/rng.h"
#include "kernels/amx_emulated.h"
#include "kernels/bsr_linear/rows.h"
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

}  // namespace

std::string describe(const Case& c) {
  return std::string(name_of(c.direction)) + " " + name_of(c.dtype) + " m=" + std::to_string(c.m) + " " +
         std::to_string(c.rows) + "x" + std::to_string(c.cols) + " block " + to_string(c.block) +
         " density " + std::to_string(c.density) + " bias " + std::to_string(c.bias) + " act " +
         name_of(c.activation) + " padding " + std::to_string(c.stride_padding) + " values + " +
         std::to_string(c.values_shift) + (c.residual ? " residual" : "") +
         (c.accumulate ? " accumulate" : "") + (c.tf32 ? " tf32" : "") + (c.skewed ? " skewed" : "");
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
  crow.shrink_to_fit(), col.shrink_to_fit();
  ccol.resize(static_cast<std::size_t>(block_cols) + 1);
  row.resize(col.size());
  slot.resize(col.size());
  transpose_index(index(), ccol.data(), row.data(), slot.data());
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
  // Whether the operands of args() and the output are aligned in memory whose places are.
  const auto aligned = [](DType dtype, std::int64_t offset, std::int64_t rows, std::int64_t stride) {
    return offset * static_cast<std::int64_t>(size_of(dtype)) % 16 == 0 &&
           is_aligned({nullptr, dtype, rows, stride, stride});
  };
  const std::int64_t padding = c.stride_padding;
  // The tests call the kernels themselves, which take the distance between rows as it is, also of a single
  // row.
  const std::int64_t m = std::max<std::int64_t>(c.m, 2);
  const bool by_rows = aligned(c.dtype, padding, m, c.rows + padding),
             by_cols = aligned(c.dtype, padding, m, c.cols + padding);
  const bool values_aligned = c.accumulate || aligned(c.dtype, c.values_shift, 0, 0);
  const bool dx = c.direction == Direction::dx, dw = c.direction == Direction::dw;
  p.aligned = values_aligned && (dw ? by_rows && by_cols : dx ? by_rows : by_cols);
  if (c.direction == Direction::forward && c.residual) p.aligned = p.aligned && by_rows;
  p.out_aligned = dw || (dx ? by_cols : by_rows);
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

MatmulArgs Instance::args() {
  MatmulArgs args;
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
  const kernels::bsr_linear::Answer planned =
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

std::vector<const kernels::Kernel*> runnable(const Problem& problem) {
  const auto runs = [&](const kernels::Kernel& kernel) {
    return kernels::bsr_linear::ask(kernel, problem, {runtime::active_isa(), {}, {}}).refusal.empty();
  };
  std::vector<const kernels::Kernel*> list;
  for (const kernels::Kernel& kernel : kernels::cpu_kernels())
    if (runs(kernel)) list.push_back(&kernel);
#if defined(__x86_64__)
  if (runs(emulated_amx_kernel())) list.push_back(&emulated_amx_kernel());
#endif
  return list;
}

}  // namespace sparseloom::testing
