// Epilogue of mma::forward: out = round(act(sums + bias) + residual). The fp32 sums go through shared memory.
// Stores then follow the rows of out rather than the MMA fragments (whose lanes hold 2 neighbours each), and
// one copy of the activation code serves all sums. Each warp works on its own, 16 tokens at a time, in the
// ring stage that was multiplied last; the other stages already receive the next block row.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/bsr_linear/sm80/mma/forward/stream.cuh"
#include "kernels/shared/epilogue/activation.cuh"
#include "kernels/shared/ptx/cluster.cuh"

namespace sparseloom::kernels::cuda::mma::forward {

template <class T>
using Sums = float[T::kFragmentsM][T::kFragmentsN][4];

/// Stores four neighbours of a row, of which the first `exist` lie inside the matrix.
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

/// Writes one row of fragments (16 tokens) of a warp's sums to shared memory as [16][kSumsStride].
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

/// The four output columns that a lane stores.
template <class T>
struct Columns {
  static constexpr int kLanes = T::kWarpLine / 4, kRows = 32 / kLanes;  // lanes along a row; rows at a time
  std::int64_t column;                                                  // column of out
  int exist;  // how many of the four lie inside the matrix
  float bias[4];

  __device__ __forceinline__ Columns(const Params& params, unsigned block_row) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    column = std::int64_t{block_row} * T::kBlockRow + warp % T::kWarpsN * T::kWarpLine + lane % kLanes * 4;
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

/// Rounds and stores 16 tokens of the tile, from `first_row` on. read(row), for row 0 to 15, returns the
/// lane's four sums.
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

/// Stores the sums of one block row through the ring stage at `bytes`, which all warps must have read.
template <class T>
__device__ __forceinline__ void store_block_row(const Params& params, const Place& place, unsigned block_row,
                                                std::byte* bytes, const Sums<T>& sums) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float* strip = reinterpret_cast<float*>(bytes) + warp * 16 * T::kSumsStride;
  const Columns<T> columns(params, block_row);
  // This loop is rolled, so that its body exists once. The inner loop selects the fragments, since registers
  // need constant indices.
#pragma unroll 1
  for (int turn = 0; turn < T::kFragmentsM; ++turn) {
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

/// Stores the sums of one block row in a cluster whose thread blocks each hold a segment's sums. Every thread
/// block stores some of the rows of fragments, and adds all segments in order. The whole ring must be free.
template <class T>
__device__ __forceinline__ void store_block_row_of_team(const Params& params, const Place& place,
                                                        unsigned block_row, SharedStorage<T>& shared,
                                                        const Sums<T>& sums) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float* strips = reinterpret_cast<float*>(shared.ring) + warp * T::kWarpTokens * T::kSumsStride;
#pragma unroll
  for (int i = 0; i < T::kFragmentsM; ++i) spread<T>(strips + i * 16 * T::kSumsStride, sums[i]);
  ptx::cluster_sync();
  const Columns<T> columns(params, block_row);
#pragma unroll 1
  for (int turn = place.segment; turn < T::kFragmentsM; turn += place.segments) {
    store_strip<T>(params, place, columns, warp / T::kWarpsN * T::kWarpTokens + turn * 16, [&](int row) {
      const auto* at = reinterpret_cast<const float4*>(strips + (turn * 16 + row) * T::kSumsStride +
                                                       lane % Columns<T>::kLanes * 4);
      float4 sum = ptx::ld_shared_cluster(at, 0);
      for (int segment = 1; segment < place.segments; ++segment) {
        const float4 more = ptx::ld_shared_cluster(at, segment);
        sum = make_float4(sum.x + more.x, sum.y + more.y, sum.z + more.z, sum.w + more.w);
      }
      return sum;
    });
  }
  ptx::cluster_sync();  // no thread block may exit while another reads its shared memory
}

}  // namespace sparseloom::kernels::cuda::mma::forward
