// out = round(act(sums + bias) + residual): fp32 sums through shared memory, so that stores follow the rows
// of out instead of the fragments (whose lanes hold 2 neighbours each), and one copy of the activations
// serves all sums. Each warp on its own, 16 tokens at a time, in the ring stage that was multiplied last: the
// others already receive the next line.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/epilogue/activation.cuh"
#include "kernels/cuda/ptx/cluster.cuh"
#include "kernels/cuda/sm80/dds_stream.cuh"

namespace sparseloom::kernels::cuda::dds {

template <class T>
using Sums = float[T::kFragmentsM][T::kFragmentsN][4];

/// Four neighbours of a row, of which `exist` lie in the matrix.
template <class T>
__device__ __forceinline__ void store_four(typename T::Bits* to, const float (&y)[4], int exist,
                                           bool vector) {
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

/// Fragments i of a warp's sums, as rows of shared memory: strip [16][kSumsStride].
template <class T>
__device__ __forceinline__ void spread(float* strip, const float (&sums)[T::kFragmentsN][4]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int j = 0; j < T::kFragmentsN; ++j) {
    float* at = strip + lane / 4 * T::kSumsStride + j * 8 + lane % 4 * 2;
    *reinterpret_cast<float2*>(at) = make_float2(sums[j][0], sums[j][1]);
    *reinterpret_cast<float2*>(at + 8 * T::kSumsStride) = make_float2(sums[j][2], sums[j][3]);
  }
}

/// A lane's four columns of the outputs of its warp.
template <class T>
struct Columns {
  static constexpr int kLanes = T::kWarpLine / 4, kRows = 32 / kLanes;  // lanes along a row, rows at once
  std::int64_t column;                                                  // of out
  int exist;                                                            // of the four
  float bias[4];

  __device__ __forceinline__ Columns(const Params& params, unsigned line) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    column = std::int64_t{line} * T::kLine + warp % T::kWarpsN * T::kWarpLine + lane % kLanes * 4;
    const std::int64_t left = params.out_width - column;
    exist = left < 0 ? 0 : left < 4 ? static_cast<int>(left) : 4;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      bias[e] = params.bias && e < exist
                    ? T::Element::to_f32(static_cast<const typename T::Bits*>(params.bias)[column + e])
                    : 0.0f;
    }
  }
};

/// Rounds and stores 16 tokens from `first_row` of the tile; read(row) gives the lane's four sums of row 0
/// to 15.
template <class T, class Read>
__device__ __forceinline__ void store_strip(const Params& params, const Place& place,
                                            const Columns<T>& columns, int first_row, Read read) {
  const int lane = threadIdx.x % 32;
  if (columns.exist == 0) return;
#pragma unroll 2
  for (int row = lane / Columns<T>::kLanes; row < 16; row += Columns<T>::kRows) {
    if (first_row + row >= place.tokens) return;
    const float4 sum = read(row);
    float y[4] = {sum.x + columns.bias[0], sum.y + columns.bias[1], sum.z + columns.bias[2],
                  sum.w + columns.bias[3]};
    epilogue::activate(params.activation, y);
    if (params.residual != nullptr) {
      const auto* more = static_cast<const typename T::Bits*>(params.residual) +
                         (place.token + first_row + row) * params.residual_stride + columns.column;
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (e < columns.exist) y[e] += T::Element::to_f32(more[e]);
      }
    }
    auto* to = static_cast<typename T::Bits*>(params.out) +
               (place.token + first_row + row) * params.out_stride + columns.column;
    store_four<T>(to, y, columns.exist, params.store_vectors);
  }
}

/// Through the ring stage at `bytes`, which no warp may still be reading.
template <class T>
__device__ __forceinline__ void store_line(const Params& params, const Place& place, unsigned line,
                                           std::byte* bytes, const Sums<T>& sums) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float* strip = reinterpret_cast<float*>(bytes) + warp * 16 * T::kSumsStride;
  const Columns<T> columns(params, line);
#pragma unroll 1
  for (int turn = 0; turn < T::kFragmentsM;
       ++turn) {  // one copy of what follows; registers want constant indices
#pragma unroll
    for (int i = 0; i < T::kFragmentsM; ++i) {
      if (i == turn) spread<T>(strip, sums[i]);
    }
    __syncwarp();
    store_strip<T>(params, place, columns, warp / T::kWarpsN * T::kWarpTokens + turn * 16, [&](int row) {
      return *reinterpret_cast<const float4*>(strip + row * T::kSumsStride + lane % Columns<T>::kLanes * 4);
    });
    __syncwarp();
  }
}

/// The same where the thread blocks of a cluster hold one part of the reduction each: every one adds up, in
/// the order of the parts, and stores its share of the strips. The ring is free.
template <class T>
__device__ __forceinline__ void store_line_of_team(const Params& params, const Place& place, unsigned line,
                                                   SharedStorage<T>& shared, const Sums<T>& sums) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float* strips = reinterpret_cast<float*>(shared.ring) + warp * T::kWarpTokens * T::kSumsStride;
#pragma unroll
  for (int i = 0; i < T::kFragmentsM; ++i) spread<T>(strips + i * 16 * T::kSumsStride, sums[i]);
  ptx::cluster_sync();
  const Columns<T> columns(params, line);
#pragma unroll 1
  for (int turn = place.part; turn < T::kFragmentsM; turn += place.parts) {
    store_strip<T>(params, place, columns, warp / T::kWarpsN * T::kWarpTokens + turn * 16, [&](int row) {
      const auto* at = reinterpret_cast<const float4*>(strips + (turn * 16 + row) * T::kSumsStride +
                                                       lane % Columns<T>::kLanes * 4);
      float4 sum = ptx::ld_shared_cluster(at, 0);
      for (int part = 1; part < place.parts; ++part) {
        const float4 more = ptx::ld_shared_cluster(at, part);
        sum = make_float4(sum.x + more.x, sum.y + more.y, sum.z + more.z, sum.w + more.w);
      }
      return sum;
    });
  }
  ptx::cluster_sync();  // nobody leaves while another reads from it
}

}  // namespace sparseloom::kernels::cuda::dds
