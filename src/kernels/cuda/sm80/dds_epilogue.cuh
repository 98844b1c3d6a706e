// out = round(act(sums + bias)): fp32 sums through shared memory, where the ring was, so that stores follow the rows of out instead
// of the fragments (whose lanes hold 2 neighbours each), and one copy of the activations serves all sums. Each warp on its own: no
// barrier, a warp that is done leaves.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/epilogue/activation.cuh"
#include "kernels/cuda/sm80/dds_gather.cuh"

namespace sparseloom::kernels::cuda::dds {

/// bias in fp32, zero where there is none.
template <class T>
__device__ __forceinline__ void fetch_bias(const Params& params, const Place& place, SharedStorage<T>& shared) {
  const auto* bias = static_cast<const typename T::Bits*>(params.bias);
  for (int n = threadIdx.x; n < T::kLine; n += T::kThreads) {
    const std::int64_t column = place.line * T::kLine + n;
    shared.bias[n] = bias && column < params.out_width ? T::Element::to_f32(bias[column]) : 0.0f;
  }
}

/// Four neighbours of a row, of which `exist` lie in the matrix.
template <class T>
__device__ __forceinline__ void store_four(typename T::Bits* to, const float (&y)[4], int exist, bool vector) {
  if constexpr (T::kBytes == 4) {
    if (vector && exist >= 4) {
      *reinterpret_cast<float4*>(to) = make_float4(y[0], y[1], y[2], y[3]);
    } else {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (e < exist) to[e] = __float_as_uint(y[e]);
      }
    }
  } else {
    const std::uint32_t pairs[2] = {T::Element::pair(y[0], y[1]), T::Element::pair(y[2], y[3])};
    if (vector && exist >= 4) {
      *reinterpret_cast<uint2*>(to) = make_uint2(pairs[0], pairs[1]);
    } else {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (e < exist) to[e] = static_cast<std::uint16_t>(pairs[e / 2] >> (e % 2 * 16));
      }
    }
  }
}

template <class T>
__device__ __forceinline__ void store_tile(const Params& params, const Place& place, SharedStorage<T>& shared,
                                           const float (&sums)[T::kFragmentsM][T::kFragmentsN][4]) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float* tile = reinterpret_cast<float*>(shared.ring) + warp * T::kWarpTokens * T::kSumsStride;  // [kWarpTokens][kSumsStride]
#pragma unroll
  for (int i = 0; i < T::kFragmentsM; ++i) {
#pragma unroll
    for (int j = 0; j < T::kFragmentsN; ++j) {
      float* at = tile + (i * 16 + lane / 4) * T::kSumsStride + j * 8 + lane % 4 * 2;
      *reinterpret_cast<float2*>(at) = make_float2(sums[i][j][0], sums[i][j][1]);
      *reinterpret_cast<float2*>(at + 8 * T::kSumsStride) = make_float2(sums[i][j][2], sums[i][j][3]);
    }
  }
  __syncwarp();

  constexpr int kLanes = T::kWarpLine / 4, kRows = 32 / kLanes;  // lanes along a row, rows at once
  const int column = warp % T::kWarpsN * T::kWarpLine + lane % kLanes * 4, first_row = warp / T::kWarpsN * T::kWarpTokens;
  const std::int64_t out_column = place.line * T::kLine + column, left = params.out_width - out_column;
  if (left <= 0) return;
  const int exist = left < 4 ? static_cast<int>(left) : 4;
  const float4 bias = *reinterpret_cast<const float4*>(shared.bias + column);
  const float* from = tile + lane / kLanes * T::kSumsStride + lane % kLanes * 4;
  auto* to =
      static_cast<typename T::Bits*>(params.out) + (place.token + first_row + lane / kLanes) * params.out_stride + out_column;
#pragma unroll 4
  for (int row = lane / kLanes; row < T::kWarpTokens; row += kRows) {
    if (first_row + row >= place.tokens) return;
    const float4 sum = *reinterpret_cast<const float4*>(from);
    float y[4] = {sum.x + bias.x, sum.y + bias.y, sum.z + bias.z, sum.w + bias.w};
    epilogue::activate(params.activation, y);
    store_four<T>(to, y, exist, params.store_vectors);
    from += kRows * T::kSumsStride;
    to += kRows * params.out_stride;
  }
}

}  // namespace sparseloom::kernels::cuda::dds
