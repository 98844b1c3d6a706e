#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "kernels/semi24_linear/sm80/entries.h"
#include "kernels/shared/early_launch.cuh"
#include "kernels/shared/epilogue/activation.cuh"
#include "kernels/shared/ptx/convert.cuh"

namespace sparseloom::kernels::cuda {
namespace {

constexpr int kThreads = 256, kTokens = 8;

struct Params {
  const std::uint8_t *x, *values, *positions;
  const void* bias;
  void* out;
  const float *x_scale, *w_scale;
  std::int64_t tokens, rows, cols, groups, x_stride, out_stride, items;
  bool x_scale_each, w_scale_each, is_f32;
  Activation activation;
};

struct I8 {
  using Sum = std::int32_t;
  static __device__ __forceinline__ Sum wide(std::uint8_t bits) { return static_cast<std::int8_t>(bits); }
};

struct E4m3 {
  using Sum = float;
  // The bits of exponent and fraction, shifted to their position in fp32, are 2^-120 of the value; denormals
  // too.
  static __device__ __forceinline__ Sum wide(std::uint8_t bits) {
    const std::uint32_t sign = std::uint32_t{bits & 0x80u} << 24, magnitude = bits & 0x7fu;
    const float value = __uint_as_float(sign | magnitude << 20) * 0x1p120f;
    return magnitude == 0x7f ? __uint_as_float(0x7fffffffu) : value;
  }
};

/// A work item is an output feature and kTokens tokens; a warp takes work items in turn.
template <class Type>
__global__ void __launch_bounds__(kThreads) semi24_dots_kernel(const Params params) {
  using Sum = typename Type::Sum;
  const int lane = threadIdx.x % 32;
  const std::int64_t warps = std::int64_t{gridDim.x} * (kThreads / 32);
  for (std::int64_t item = (std::int64_t{blockIdx.x} * kThreads + threadIdx.x) / 32; item < params.items;
       item += warps) {
    const std::int64_t row = item % params.rows, first = item / params.rows * kTokens;
    const std::uint8_t* const positions = params.positions + row * ((params.groups + 1) / 2);
    const std::uint8_t* const values = params.values + row * params.groups * 2;
    Sum sums[kTokens] = {};
    for (std::int64_t group = lane; group < params.groups; group += 32) {
      const unsigned pair = positions[group / 2] >> (group % 2 * 4) & 15u;
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const std::int64_t column = group * 4 + (pair >> (2 * e) & 3u);
        if (column >= params.cols) continue;
        const Sum w = Type::wide(values[group * 2 + e]);
#pragma unroll
        for (int t = 0; t < kTokens; ++t)
          if (first + t < params.tokens)
            sums[t] += w * Type::wide(params.x[(first + t) * params.x_stride + column]);
      }
    }
    Sum own = 0;  // lane t has token t
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
#pragma unroll
      for (int apart = 16; apart > 0; apart /= 2) sums[t] += __shfl_xor_sync(0xffffffff, sums[t], apart);
      if (lane == t) own = sums[t];
    }
    const std::int64_t token = first + lane;
    if (lane >= kTokens || token >= params.tokens) continue;
    float bias = 0.0f;
    if (params.bias != nullptr)
      bias = params.is_f32 ? static_cast<const float*>(params.bias)[row]
                           : ptx::cvt_f32_bf16(static_cast<const std::uint16_t*>(params.bias)[row]);
    float y[1] = {fmaf(static_cast<float>(own) * params.x_scale[params.x_scale_each ? token : 0],
                       params.w_scale[params.w_scale_each ? row : 0], bias)};
    epilogue::activate(params.activation, y);
    const std::int64_t at = token * params.out_stride + row;
    if (params.is_f32)
      static_cast<float*>(params.out)[at] = y[0];
    else
      static_cast<std::uint16_t*>(params.out)[at] =
          static_cast<std::uint16_t>(ptx::cvt_rn_bf16x2(y[0], 0.0f));
  }
}

}  // namespace

int sm80_semi24_dots(const MatmulArgs& args, const Semi24View& w) noexcept {
  if (args.m == 0 || w.rows == 0) return cudaSuccess;
  const std::int64_t items = w.rows * ((args.m + kTokens - 1) / kTokens);
  const Params params{static_cast<const std::uint8_t*>(args.a),
                      static_cast<const std::uint8_t*>(args.values),
                      w.positions,
                      args.bias,
                      args.out,
                      args.a_scale,
                      args.w_scale,
                      args.m,
                      w.rows,
                      w.cols,
                      w.groups(),
                      args.a_stride,
                      args.out_stride,
                      items,
                      args.a_scale_each,
                      args.w_scale_each,
                      args.out_dtype == DType::f32,
                      args.activation};
  constexpr int kWarps = kThreads / 32;
  const auto blocks = static_cast<unsigned>(std::min<std::int64_t>((items + kWarps - 1) / kWarps, 65536));
  return launch_kernel({.grid = blocks, .block = kThreads, .stream = static_cast<cudaStream_t>(args.stream)},
                       args.dtype == DType::i8 ? semi24_dots_kernel<I8> : semi24_dots_kernel<E4m3>, params);
}

}  // namespace sparseloom::kernels::cuda
