// Elements of the three dtypes: loads of neighbouring ones as fp32, the single rounding, and the dispatch by
// dtype.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/shared/epilogue/activation.cuh"
#include "kernels/shared/ptx/convert.cuh"
#include "sparseloom/matmul_args.h"

namespace sparseloom::kernels::cuda::csr {

struct F32 {
  using Bits = float;
  static __device__ __forceinline__ float widen(Bits x) { return x; }
  static __device__ __forceinline__ Bits narrow(float x) { return x; }
};
struct Bf16 {
  using Bits = std::uint16_t;
  static __device__ __forceinline__ float widen(Bits x) { return ptx::cvt_f32_bf16(x); }
  static __device__ __forceinline__ Bits narrow(float x) {
    return static_cast<Bits>(ptx::cvt_rn_bf16x2(x, 0.0f));
  }
};
struct F16 {
  using Bits = std::uint16_t;
  static __device__ __forceinline__ float widen(Bits x) { return ptx::cvt_f32_f16(x); }
  static __device__ __forceinline__ Bits narrow(float x) {
    return static_cast<Bits>(ptx::cvt_rn_f16x2(x, 0.0f));
  }
};

/// Calls run(Element) with the element of the dtype, and returns what it returns.
template <class Run>
int with_element(DType dtype, const Run& run) {
  switch (dtype) {
    case DType::f32: return run(F32{});
    case DType::bf16: return run(Bf16{});
    case DType::f16: return run(F16{});
    default: return cudaErrorInvalidValue;
  }
}

/// kCount neighbouring elements, aligned to their total size.
template <class T, int kCount>
struct alignas(kCount * sizeof(typename T::Bits)) Stretch {
  typename T::Bits element[kCount];
};

template <class T, int kCount>
__device__ __forceinline__ void load(const typename T::Bits* from, float (&to)[kCount]) {
  const auto stretch = *reinterpret_cast<const Stretch<T, kCount>*>(from);
#pragma unroll
  for (int i = 0; i < kCount; ++i) to[i] = T::widen(stretch.element[i]);
}

/// The index of W's rows (dX: of its columns), and the results of forward or dX.
template <class T>
struct Rows {
  const std::int32_t *begin, *index;  // row r has the elements from begin[r] to begin[r + 1]
  std::int64_t rows, depth, m;        // outputs of a token, terms of the longest sum, tokens
  const typename T::Bits *a, *bias, *residual;
  typename T::Bits* out;
  std::int64_t a_stride, out_stride, residual_stride;
  Activation activation;

  /// act(sum + bias) + residual, rounded once.
  __device__ __forceinline__ void write(std::int64_t token, std::int64_t row, float sum) const {
    float y[1] = {sum};
    if (bias != nullptr) y[0] += T::widen(bias[row]);
    if (activation != Activation::none) epilogue::activate(activation, y);
    if (residual != nullptr) y[0] += T::widen(residual[token * residual_stride + row]);
    out[token * out_stride + row] = T::narrow(y[0]);
  }
};

/// The operands of forward, or of dX, which is forward on the column index.
template <class T, class View>
Rows<T> rows_of(const MatmulArgs& args, const View& w) {
  using Bits = typename T::Bits;
  const bool dx = args.direction == Direction::dx;
  Rows<T> p{};
  p.begin = dx ? w.ccol : w.crow, p.index = dx ? w.row : w.col;
  p.rows = dx ? w.cols : w.rows, p.depth = dx ? w.rows : w.cols, p.m = args.m;
  p.a = static_cast<const Bits*>(args.a), p.a_stride = args.a_stride;
  p.bias = static_cast<const Bits*>(args.bias);
  p.residual = static_cast<const Bits*>(args.residual), p.residual_stride = args.residual_stride;
  p.out = static_cast<Bits*>(args.out), p.out_stride = args.out_stride;
  p.activation = args.activation;
  return p;
}

/// Writes dW at slot `at`, or adds it to a sum in fp32.
template <class T>
__device__ __forceinline__ void write_dw(void* out, bool accumulate, std::int64_t at, float sum) {
  if (accumulate)
    static_cast<float*>(out)[at] += sum;
  else
    static_cast<typename T::Bits*>(out)[at] = T::narrow(sum);
}

}  // namespace sparseloom::kernels::cuda::csr
