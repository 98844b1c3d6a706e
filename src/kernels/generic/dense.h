// The dense products over any Layout, where D is W scattered into the workspace and the executor lends the
// GEMM:
//
//   forward  Y = act(X D^T + bias) + residual
//   dx       dX = dY D
//   dw       D = dY^T X, whose stored elements are gathered, or added in fp32 (CUDA only)
//   f8e4m3   forward with D of 8 bits and the lent GEMM with scales, whose roundings are the vendor's and not
//            those of extension.h (CUDA only)
//
// Every call scatters W, and the prediction includes the cost. Keeping D would silently double the layer's
// memory, so only an explicit freeze() on the layer does that. Of MatmulArgs they read operands and epilogue
// alone, as in reference.h.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <string>

#include "core/check.h"
#include "kernels/args.h"
#include "kernels/scalar.h"
#include "kernels/shared/activation/activate.h"
#include "runtime/parallel.h"
#include "sparseloom/layout_concept.h"

namespace sparseloom::kernels::generic {

/// A layout's copies on a CUDA device. A family that has such kernels specialises it with static functions
/// that queue their work on `stream` and return 0 or a cudaError_t; without them the dense row refuses CUDA
/// problems.
///
///   unpack(view, values, dense, stream)  as Layout's unpack, of all rows
///   pack(dense, view, values, stream)    values <- dense at the stored elements, zero as padding
///   add(dense, view, values, stream)     values += dense at the stored elements, both f32
template <Layout L>
struct DeviceCopies {};

template <class L>
concept LayoutOnDevice = Layout<L> && requires(const typename L::View& view, const void* values,
                                               void* written, const MatrixView& dense, void* stream) {
  { DeviceCopies<L>::unpack(view, values, dense, stream) } -> std::same_as<int>;
  { DeviceCopies<L>::pack(dense, view, written, stream) } -> std::same_as<int>;
  { DeviceCopies<L>::add(dense, view, written, stream) } -> std::same_as<int>;
};

// The vendor's 8-bit products (cuBLAS, and so torch) require this compute capability and these multiples of
// features. ScaledGemm guarantees them to the executor that lends one.
inline constexpr int kScaledSm = 89, kScaledFeatures = 16;

inline std::string refuse_scaled_dense(const Problem& p, const plan::Machine& machine) {
  if (p.dtype != DType::f8e4m3)
    return std::string("multiplies float8_e4m3fn alone of the 8-bit dtypes, the dtype is ") +
           name_of(p.dtype);
  if (p.device < 0) return "multiplies float8_e4m3fn on CUDA devices only, the operands are on the CPU";
  if (!p.can_gemm) return "the executor lends no GEMM with scales";
  if (const int sm = machine.cuda.sm; sm < kScaledSm)
    return "needs compute capability 8.9 or newer for float8_e4m3fn, the device has " +
           std::to_string(sm / 10) + "." + std::to_string(sm % 10);
  if (p.rows % kScaledFeatures != 0 || p.cols % kScaledFeatures != 0)
    return "multiplies float8_e4m3fn with in and out features in multiples of 16 only, W is [" +
           std::to_string(p.rows) + ", " + std::to_string(p.cols) + "]";
  if (p.m == 0 || p.rows == 0 || p.cols == 0) return "nothing to multiply";
  return {};
}

/// KernelInfo::refusal of a dense row.
template <Layout L>
std::string dense_refusal(const Problem& p, const plan::Machine& machine) {
  if (p.strict) return "strict forbids going dense";
  if (p.device >= 0 && !LayoutOnDevice<L>)
    return std::string("the layout ") + L::kId + " has no unpack on CUDA devices";
  if (is_scaled(p.dtype)) return refuse_scaled_dense(p, machine);
  if (!p.can_gemm) return "the executor lends no GEMM";
  if (p.direction == Direction::dw && p.device < 0)
    return "dw is made at the stored blocks only, without a dense buffer";
  if (p.m == 0 || p.rows == 0 || p.cols == 0) return "nothing to multiply";
  if (p.device >= 0) return {};
  if (machine.rates.gemm_flops <= 0)
    return "the lent GEMM was not measured: sparse wins even against the machine's peak, or another kernel "
           "was forced";
  return {};
}

/// The predicted time on the CPU. The scatter writes every element of D once, and the GEMM reads it once. The
/// stored values are read once.
inline double predict_dense_cpu_us(const Problem& p, const plan::Machine& machine) {
  const double bytes =
      static_cast<double>(p.rows) * static_cast<double>(p.cols) * static_cast<double>(size_of(p.dtype));
  const double product =
      2.0 * static_cast<double>(p.m) * static_cast<double>(p.rows) * static_cast<double>(p.cols);
  double us = 1e6 * (bytes / (machine.rates.copy_bytes * std::max(1, p.threads)) +
                     product / machine.rates.gemm_flops);
  if (p.activation != Activation::none || p.residual)
    us += 1e6 * static_cast<double>(p.m) * static_cast<double>(p.rows) * 10e-9 / std::max(1, p.threads);
  return us;
}

/// KernelInfo::workspace_bytes of a dense row: D.
inline std::size_t dense_workspace_bytes(const Problem& p, const plan::Machine&) {
  return static_cast<std::size_t>(p.rows) * static_cast<std::size_t>(p.cols) *
         size_of(p.accumulate ? DType::f32 : p.dtype);
}

/// D in the workspace.
template <Layout L>
MatrixView dense_of(const MatmulArgs& args, const typename L::View& w) {
  return {args.workspace, args.accumulate ? DType::f32 : args.dtype, L::rows(w), L::cols(w), L::cols(w)};
}

inline Gemm gemm_of(const MatmulArgs& args, const MatrixView& dense) {
  Gemm product;
  product.device = args.device;
  product.stream = args.stream;
  if (args.direction == Direction::dw) {
    product.a = {args.a, args.dtype, args.m, dense.rows, args.a_stride};
    product.a_transposed = true;
    product.b = {args.b, args.dtype, args.m, dense.cols, args.b_stride};
    product.c = dense;
    return product;
  }
  const bool forward = args.direction == Direction::forward;
  product.a = {args.a, args.dtype, args.m, forward ? dense.cols : dense.rows, args.a_stride};
  product.b = dense;
  product.b_transposed = forward;
  product.c = {args.out, args.dtype, args.m, forward ? dense.rows : dense.cols, args.out_stride};
  product.bias = args.bias;
  return product;
}

// The GEMM ends with the bias. A pass behind it does the rest of the epilogue: out <- act(out) + residual.
inline bool needs_epilogue_pass(const MatmulArgs& args) {
  return args.activation != Activation::none || args.residual != nullptr;
}

inline void epilogue_pass(const MatmulArgs& args, std::int64_t rows, const Executor& executor) {
  runtime::parallel_for(executor, args.m, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t)
      for (std::int64_t o = 0; o < rows; ++o) {
        const std::int64_t at = t * args.out_stride + o;
        const double more = args.residual ? load(args.dtype, args.residual, t * args.residual_stride + o) : 0;
        store(args.dtype, args.out, at, activate(args.activation, load(args.dtype, args.out, at)) + more);
      }
  });
}

/// Rows of D that one task writes. An executor may hand out indices one by one, for which single rows are too
/// little; and 32 rows cut no block of a side up to 32, and leave a layer of 512 rows 16 tasks.
inline constexpr std::int64_t kUnpackedRows = 32;

/// Forward and dX on the CPU.
template <Layout L>
int dense_on_cpu(const MatmulArgs& args, const typename L::View& w, const Executor& executor) {
  const MatrixView dense = dense_of<L>(args, w);
  runtime::parallel_tasks(executor, core::ceil_div(dense.rows, kUnpackedRows), [&](std::int64_t task) {
    const std::int64_t begin = task * kUnpackedRows;
    L::unpack(w, args.values, dense, begin, std::min(begin + kUnpackedRows, dense.rows));
  });
  executor.gemm(executor.context, gemm_of(args, dense));
  if (needs_epilogue_pass(args)) epilogue_pass(args, dense.rows, executor);
  return 0;
}

// A pass of its own adds the bias to f32 outputs, because cuBLAS's 8-bit products take none there.
template <LayoutOnDevice L>
int scaled_dense_on_device(const MatmulArgs& args, const typename L::View& w, const Executor& executor) {
  const MatrixView dense = dense_of<L>(args, w),
                   out{args.out, args.out_dtype, args.m, dense.rows, args.out_stride};
  if (const int error = DeviceCopies<L>::unpack(w, args.values, dense, args.stream); error != 0) return error;
  const bool bias_behind = args.bias != nullptr && args.out_dtype == DType::f32;
  ScaledGemm product;
  product.a = {args.a, args.dtype, args.m, dense.cols, args.a_stride};
  product.b = dense;
  product.c = out;
  product.bias = bias_behind ? nullptr : args.bias;
  product.a_scale = args.a_scale;
  product.b_scale = args.w_scale;
  product.a_scale_each = args.a_scale_each;
  product.b_scale_each = args.w_scale_each;
  product.fast_accum = args.fast_accum;
  product.device = args.device;
  product.stream = args.stream;
  executor.scaled_gemm(executor.context, product);
  if (bias_behind) {
    const ConstMatrixView every_row{args.bias, args.out_dtype, args.m, dense.rows, 0};
    if (const int error = cuda::sm80_activate(out, Activation::none, every_row, out, args.stream); error != 0)
      return error;
  }
  return args.activation == Activation::none
             ? 0
             : cuda::sm80_activate(out, args.activation, {}, out, args.stream);
}

/// All three products on a CUDA device, and forward of f8e4m3. It links only in a build with CUDA kernels.
template <LayoutOnDevice L>
int dense_on_device(const MatmulArgs& args, const typename L::View& w, const Executor& executor) {
  if (is_scaled(args.dtype)) return scaled_dense_on_device<L>(args, w, executor);
  const MatrixView dense = dense_of<L>(args, w);
  const Gemm product = gemm_of(args, dense);
  if (args.direction == Direction::dw) {
    executor.gemm(executor.context, product);
    return args.accumulate ? DeviceCopies<L>::add(dense, w, args.out, args.stream)
                           : DeviceCopies<L>::pack(dense, w, args.out, args.stream);
  }
  if (const int error = DeviceCopies<L>::unpack(w, args.values, dense, args.stream); error != 0) return error;
  executor.gemm(executor.context, product);
  if (!needs_epilogue_pass(args)) return 0;
  const ConstMatrixView residual{args.residual, args.dtype, args.m, dense.rows, args.residual_stride};
  return cuda::sm80_activate(product.c, args.activation, residual, product.c, args.stream);
}

}  // namespace sparseloom::kernels::generic
