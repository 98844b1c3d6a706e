// The dense products over any Layout on CUDA devices, beside those on the CPU (sparseloom/generic/dense.h):
//
//   forward  Y = act(X D^T + bias) + residual
//   dx       dX = dY D
//   dw       D = dY^T X, whose stored elements are gathered, or added in fp32
//   f8e4m3   forward with D of 8 bits and the lent GEMM with scales, whose roundings are the vendor's and not
//            those of matmul_args.h
//
// and the answers of a registry row for both.
#pragma once

#include <concepts>
#include <cstddef>

#include "kernels/args.h"
#include "kernels/shared/activation/activation.h"
#include "plan/machine.h"
#include "sparseloom/generic/dense.h"
#include "sparseloom/layout_concept.h"
#include "sparseloom/refusal.h"

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

// The vendor's 8-bit products (cuBLAS, and so torch) require this compute capability and features in these
// multiples. ScaledGemm guarantees them to the executor that lends one.
inline constexpr int kScaledSm = 89, kScaledFeatures = 16;

/// Why a dense row cannot run the 8-bit problem.
template <Layout L>
Refusal dense_refusal(const ScaledProblem& p, const plan::Machine& machine) {
  if (p.strict) return "strict forbids going dense";
  if (p.device >= 0 && !LayoutOnDevice<L>) return {"the layout {} has no unpack on CUDA devices", L::kId};
  if (p.dtype != DType::f8e4m3)
    return {"supports no 8-bit dtype but float8_e4m3fn, the dtype is {}", name_of(p.dtype)};
  if (p.device < 0) return "multiplies float8_e4m3fn on CUDA devices only, the operands are on the CPU";
  if (!p.can_gemm) return "the executor lends no GEMM with scales";
  if (const int sm = machine.cuda.sm; sm < kScaledSm)
    return {"needs compute capability 8.9 or newer for float8_e4m3fn, the device has {}.{}", sm / 10,
            sm % 10};
  if (p.rows % kScaledFeatures != 0 || p.cols % kScaledFeatures != 0)
    return {"multiplies float8_e4m3fn with in and out features in multiples of 16 only, W is [{}, {}]",
            p.rows, p.cols};
  if (p.m == 0 || p.rows == 0 || p.cols == 0) return "has nothing to multiply: a size is 0";
  return {};
}

/// The facts by which the dense row on the CPU is predicted.
inline DenseProblem dense_problem(const Problem& p, const plan::Machine& machine) {
  const bool pass = p.activation != Activation::none || p.residual;
  return {p.direction,
          p.dtype,
          p.m,
          p.rows,
          p.cols,
          p.threads,
          p.can_gemm,
          pass,
          machine.rates.copy_bytes,
          machine.rates.gemm_flops};
}

/// Why a dense row cannot run the problem.
template <Layout L>
Refusal dense_refusal(const Problem& p, const plan::Machine& machine) {
  if (p.strict) return "strict forbids going dense";
  if (p.device >= 0 && !LayoutOnDevice<L>) return {"the layout {} has no unpack on CUDA devices", L::kId};
  if (p.device < 0) {
    const char* const why = refuse_dense_on_cpu(dense_problem(p, machine));
    return why != nullptr ? Refusal(why) : Refusal();
  }
  if (!p.can_gemm) return "the executor lends no GEMM";
  if (p.m == 0 || p.rows == 0 || p.cols == 0) return "has nothing to multiply: a size is 0";
  return {};
}

/// The workspace of a dense row: D.
inline std::size_t dense_workspace_bytes(const Problem& p) {
  return static_cast<std::size_t>(p.rows) * static_cast<std::size_t>(p.cols) *
         size_of(p.accumulate ? DType::f32 : p.dtype);
}

/// Forward of f8e4m3 on a CUDA device. A separate pass adds the bias to f32 outputs, because cuBLAS's 8-bit
/// products do not. It links only in a build with CUDA kernels.
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

/// All three products on a CUDA device. It links only in a build with CUDA kernels.
template <LayoutOnDevice L>
int dense_on_device(const MatmulArgs& args, const typename L::View& w, const Executor& executor) {
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
