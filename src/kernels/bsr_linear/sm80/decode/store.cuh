// Epilogue of the decode kernels: bias, activation, residual and rounding of two outputs of a token.
#pragma once

#include "kernels/bsr_linear/sm80/decode/params.cuh"
#include "kernels/shared/epilogue/activation.cuh"

namespace sparseloom::kernels::cuda::decode {

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(__half x) { return __half2float(x); }
__device__ __forceinline__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }

/// Stores out[token, column] and out[token, column + 1] from their sums, if they exist.
template <class Element>
__device__ __forceinline__ void store_two(const Params<Element>& params, int token, std::int64_t column,
                                          float first, float second) {
  if (token >= params.m || column >= params.out_cols) return;
  const bool both = column + 1 < params.out_cols;
  float y[2] = {first, second};
  if (params.bias != nullptr) {
    y[0] += to_float(params.bias[column]);
    if (both) y[1] += to_float(params.bias[column + 1]);
  }
  epilogue::activate(params.activation, y);
  if (params.residual != nullptr) {
    const Element* more = params.residual + token * params.residual_stride + column;
    y[0] += to_float(more[0]);
    if (both) y[1] += to_float(more[1]);
  }
  struct alignas(2 * sizeof(Element)) Pair {
    Element first, second;
  };
  Element* to = params.out + token * params.out_stride + column;
  if (both && params.out_pairs) {
    *reinterpret_cast<Pair*>(to) = {static_cast<Element>(y[0]), static_cast<Element>(y[1])};
  } else {
    to[0] = static_cast<Element>(y[0]);
    if (both) to[1] = static_cast<Element>(y[1]);
  }
}

}  // namespace sparseloom::kernels::cuda::decode
