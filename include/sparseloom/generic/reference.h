// The reference products over any Layout: one output at a time, in fp64, on the CPU. Nothing here is clever:
// the fast kernels are tested against it.
//
//   forward  y[t][o] = act(sum over stored (o, i) of x[t][i] W[o][i] + bias[o]) + residual[t][o]
//   dx       dx[t][i] = sum over stored (o, i) of dy[t][o] W[o][i]
//   dw       dW[o][i] = sum over t of dy[t][o] x[t][i], at stored (o, i); or, in fp32, += that sum
//   8-bit    the scaled forward product with the roundings of matmul_args.h; fp64 holds i8's sums exactly,
//            and f8's sums are rounded to fp32 once
//
// They read only operands and epilogue of MatmulArgs: the View beside it has the index. In matmul_args.h,
// read "[stored(view)]" for "[blocks, bm, bn]".
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>

#include "sparseloom/extension.h"
#include "sparseloom/generic/parallel.h"
#include "sparseloom/generic/scalar.h"
#include "sparseloom/layout_concept.h"

namespace sparseloom::kernels::generic {

template <Layout L>
double forward_element(const MatmulArgs& args, const typename L::View& w, std::int64_t t, std::int64_t o) {
  const bool scaled = is_scaled(args.dtype);
  const double bias = args.bias ? load(scaled ? args.out_dtype : args.dtype, args.bias, o) : 0;
  double sum = scaled ? 0 : bias;
  // The lambda has copies, which stay in registers: reading through `args` takes a fifth longer.
  L::for_each_in_row(
      w, o,
      [&, type = args.dtype, x = args.a, first = t * args.a_stride, values = args.values](
          std::int64_t i, std::int64_t slot) { sum += load(type, x, first + i) * load(type, values, slot); });
  if (scaled) {
    const float by_token = static_cast<float>(sum) * args.a_scale[args.a_scale_each ? t : 0];
    sum = std::fma(by_token, args.w_scale[args.w_scale_each ? o : 0], static_cast<float>(bias));
  }
  const double y = activate(args.activation, sum);
  return args.residual ? y + load(args.dtype, args.residual, t * args.residual_stride + o) : y;
}

template <Layout L>
void forward(const MatmulArgs& args, const typename L::View& w, const Executor& executor) {
  const DType type = is_scaled(args.dtype) ? args.out_dtype : args.dtype;
  runtime::parallel_for(executor, args.m, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t)
      for (std::int64_t o = 0; o < L::rows(w); ++o)
        store(type, args.out, t * args.out_stride + o, forward_element<L>(args, w, t, o));
  });
}

/// dX if the layout has a column index. It needs no workspace.
template <TransposedLayout L>
void dx(const MatmulArgs& args, const typename L::View& w, const typename L::Transposed& transposed,
        const Executor& executor) {
  runtime::parallel_for(executor, args.m, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t)
      for (std::int64_t i = 0; i < L::cols(w); ++i) {
        double sum = 0;
        L::for_each_in_col(w, transposed, i, [&](std::int64_t o, std::int64_t slot) {
          sum += load(args.dtype, args.a, t * args.a_stride + o) * load(args.dtype, args.values, slot);
        });
        store(args.dtype, args.out, t * args.out_stride + i, sum);
      }
  });
}

/// Bytes of workspace for dX without a column index: one row of sums in fp64 for each thread that has tokens.
inline std::size_t dx_workspace_bytes(std::int64_t m, std::int64_t cols, int threads) noexcept {
  const std::int64_t rows = std::min<std::int64_t>(m, std::max(1, threads));
  return static_cast<std::size_t>(rows * cols) * sizeof(double);
}

/// dX without a column index: the rows of W are scattered into one token's sums after the other. Each sum
/// gets its terms in the order of the rows of W, as in the other form, so the bits are the same.
/// args.workspace: dx_workspace_bytes(args.m, cols, executor.num_threads).
template <Layout L>
void dx(const MatmulArgs& args, const typename L::View& w, const Executor& executor) {
  const std::int64_t tasks = std::min<std::int64_t>(args.m, std::max(1, executor.num_threads));
  runtime::parallel_tasks(executor, tasks, [&](std::int64_t task) {
    double* const sums = reinterpret_cast<double*>(args.workspace) + task * L::cols(w);
    for (std::int64_t t = task * args.m / tasks; t < (task + 1) * args.m / tasks; ++t) {
      std::fill_n(sums, L::cols(w), 0.0);
      for (std::int64_t o = 0; o < L::rows(w); ++o) {
        const double dy = load(args.dtype, args.a, t * args.a_stride + o);
        L::for_each_in_row(w, o, [&](std::int64_t i, std::int64_t slot) {
          sums[i] += dy * load(args.dtype, args.values, slot);
        });
      }
      for (std::int64_t i = 0; i < L::cols(w); ++i)
        store(args.dtype, args.out, t * args.out_stride + i, sums[i]);
    }
  });
}

template <Layout L>
void dw(const MatmulArgs& args, const typename L::View& w, const Executor& executor) {
  const DType type = args.accumulate ? DType::f32 : args.dtype;
  if (const std::int64_t stored = L::stored(w); !args.accumulate && stored > 0)
    // Rows do not name their padding, so all slots become zero first.
    std::memset(args.out, 0, static_cast<std::size_t>(stored) * size_of(type));
  runtime::parallel_for(executor, L::rows(w), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t o = begin; o < end; ++o)
      L::for_each_in_row(w, o, [&](std::int64_t i, std::int64_t slot) {
        double sum = args.accumulate ? load(type, args.out, slot) : 0;
        for (std::int64_t t = 0; t < args.m; ++t)
          sum += load(args.dtype, args.a, t * args.a_stride + o) *
                 load(args.dtype, args.b, t * args.b_stride + i);
        store(type, args.out, slot, sum);
      });
  });
}

/// The predicted time. One multiply-add with its conversions takes 4 to 5 ns of a thread at 16 tokens, and 4
/// to 25 at one, of f32, bf16 and f64 in blocks of 8 and 32 on a Zen 3.
inline double predict_reference_us(double madds, int threads) noexcept {
  return 1 + madds * 4e-3 / std::max(1, threads);
}

}  // namespace sparseloom::kernels::generic
