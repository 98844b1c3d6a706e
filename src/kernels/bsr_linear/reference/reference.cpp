// The reference kernel computes one output at a time, in fp64. Nothing here is clever: the fast kernels are
// tested against it.
//
//   forward  y[t][o] = act(sum over stored (o, i) of x[t][i] W[o][i] + bias[o]) + residual[t][o]
//   dx       dx[t][i] = sum over stored (o, i) of dy[t][o] W[o][i]
//   dw       dW[o][i] = sum over t of dy[t][o] x[t][i], at stored (o, i); or, in fp32, += that sum
//   8-bit    the scaled forward product with the roundings of args.h; fp64 holds i8's sums exactly, and f8's
//            sums are rounded to fp32 once
#include "kernels/bsr_linear/reference/reference.h"

#include <algorithm>
#include <cmath>

#include "kernels/scalar.h"
#include "runtime/parallel.h"

namespace sparseloom::kernels {
namespace {

DType out_dtype(const MatmulArgs& args) { return is_scaled(args.dtype) ? args.out_dtype : args.dtype; }

double forward_element(const MatmulArgs& args, std::int64_t t, std::int64_t o) {
  const IndexView& w = args.index;
  const std::int64_t r = o / w.block.rows;
  const double bias = args.bias ? load(out_dtype(args), args.bias, o) : 0;
  double sum = is_scaled(args.dtype) ? 0 : bias;
  for (std::int64_t b = w.crow[r]; b < w.crow[r + 1]; ++b) {
    const std::int64_t first = std::int64_t{w.col[b]} * w.block.cols;
    const std::int64_t inputs = std::min<std::int64_t>(w.block.cols, w.cols - first);
    const std::int64_t at = b * w.block_elements() + o % w.block.rows * w.block.cols;
    for (std::int64_t i = 0; i < inputs; ++i)
      sum += load(args.dtype, args.a, t * args.a_stride + first + i) * load(args.dtype, args.values, at + i);
  }
  if (is_scaled(args.dtype)) {
    const float scaled = static_cast<float>(sum) * args.a_scale[args.a_scale_each ? t : 0];
    sum = std::fma(scaled, args.w_scale[args.w_scale_each ? o : 0], static_cast<float>(bias));
  }
  const double y = activate(args.activation, sum);
  return args.residual ? y + load(args.dtype, args.residual, t * args.residual_stride + o) : y;
}

double dx_element(const MatmulArgs& args, std::int64_t t, std::int64_t i) {
  const IndexView& w = args.index;
  const std::int64_t c = i / w.block.cols;
  double sum = 0;
  for (std::int64_t b = args.transposed.ccol[c]; b < args.transposed.ccol[c + 1]; ++b) {
    const std::int64_t first = std::int64_t{args.transposed.row[b]} * w.block.rows;
    const std::int64_t outputs = std::min<std::int64_t>(w.block.rows, w.rows - first);
    const std::int64_t at = std::int64_t{args.transposed.slot[b]} * w.block_elements() + i % w.block.cols;
    for (std::int64_t o = 0; o < outputs; ++o)
      sum += load(args.dtype, args.a, t * args.a_stride + first + o) *
             load(args.dtype, args.values, at + o * w.block.cols);
  }
  return sum;
}

void dw_block(const MatmulArgs& args, std::int64_t r, std::int64_t b) {
  const IndexView& w = args.index;
  for (std::int64_t o = 0; o < w.block.rows; ++o)
    for (std::int64_t i = 0; i < w.block.cols; ++i) {
      const std::int64_t out = r * w.block.rows + o, in = std::int64_t{w.col[b]} * w.block.cols + i;
      const std::int64_t at = b * w.block_elements() + o * w.block.cols + i;
      double sum = args.accumulate ? load(DType::f32, args.out, at) : 0;
      if (out < w.rows && in < w.cols)  // padding stays zero
        for (std::int64_t t = 0; t < args.m; ++t)
          sum += load(args.dtype, args.a, t * args.a_stride + out) *
                 load(args.dtype, args.b, t * args.b_stride + in);
      store(args.accumulate ? DType::f32 : args.dtype, args.out, at, sum);
    }
}

int launch(const MatmulArgs& args, const Executor& executor) {
  const IndexView& w = args.index;
  if (args.direction == Direction::dw) {
    runtime::parallel_for(executor, w.block_rows(), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r)
        for (std::int64_t b = w.crow[r]; b < w.crow[r + 1]; ++b) dw_block(args, r, b);
    });
    return 0;
  }
  const bool forward = args.direction == Direction::forward;
  const std::int64_t width = forward ? w.rows : w.cols;
  runtime::parallel_for(executor, args.m, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t)
      for (std::int64_t j = 0; j < width; ++j)
        store(out_dtype(args), args.out, t * args.out_stride + j,
              forward ? forward_element(args, t, j) : dx_element(args, t, j));
  });
  return 0;
}

// `strict` refuses this kernel for fp64 too, although no other kernel takes fp64: it is slow, and a caller
// sets `strict` to learn of slow choices.
std::string refusal(const Problem& problem, const plan::Machine&) {
  if (problem.strict) return "strict forbids the reference kernel";
  return {};
}

// One multiply-add with its conversions takes about 1 ns, measured on Zen 4.
double predict_us(const Problem& p, const plan::Machine&) {
  const double madds = static_cast<double>(p.m) * static_cast<double>(p.blocks) * p.block.rows * p.block.cols;
  return 1 + madds * 1e-3 / std::max(1, p.threads);
}

std::size_t workspace_bytes(const Problem&, const plan::Machine&) { return 0; }

}  // namespace

Kernel reference_kernel() {
  return {
      {"reference", plan::Side::cpu, runtime::Isa::generic, refusal, predict_us, workspace_bytes, true, true},
      launch};
}

}  // namespace sparseloom::kernels
