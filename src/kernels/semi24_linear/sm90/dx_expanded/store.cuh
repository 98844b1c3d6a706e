// The ends of a tile: sums go from registers to outputs, or through shared memory if warpgroups and thread
// blocks have sums of the same outputs.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/semi24_linear/sm90/dx_expanded/mainloop.cuh"
#include "kernels/shared/ptx/cluster.cuh"

namespace sparseloom::kernels::cuda::semi24_dx {

template <class T>
__device__ __forceinline__ uint2 rounded(float a, float b, float c, float d) {
  return make_uint2(T::Element::pair(a, b), T::Element::pair(c, d));
}

/// For each of its tokens a thread has the four in features of its group, eight lanes 64 bytes.
template <class T>
__device__ __forceinline__ void store_sums(const Params& params, const Sums<T>& sums, int warpgroup,
                                           std::int32_t input, std::int32_t token) {
  const std::int32_t lane = threadIdx.x % 32, group = threadIdx.x / 32 % 4 * 8 + lane / 4;
  const std::int32_t column = input + warpgroup * 128 + group * 4;
  if (column >= params.cols) return;
  token += lane % 4 * 2;
  std::uint16_t* const out = params.out + column;
#pragma unroll
  for (int j = 0; j < T::kTokens / 8; ++j) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const std::int32_t t = token + j * 8 + i;
      if (t < params.tokens)
        *reinterpret_cast<uint2*>(out + t * params.out_stride) = rounded<T>(
            sums[0][4 * j + i], sums[0][4 * j + 2 + i], sums[1][4 * j + i], sums[1][4 * j + 2 + i]);
    }
  }
}

/// Writes a warpgroup's sums to shared memory for the others.
template <class T>
__device__ __forceinline__ void share_sums(Shared<T>& shared, const Sums<T>& sums, int warpgroup) {
  const std::int32_t lane = threadIdx.x % 32, group = threadIdx.x / 32 % 4 * 8 + lane / 4;
#pragma unroll
  for (int j = 0; j < T::kTokens / 8; ++j) {
#pragma unroll
    for (int i = 0; i < 2; ++i)
      *reinterpret_cast<float4*>(&shared.sums[warpgroup][j * 8 + lane % 4 * 2 + i][group * 4]) =
          make_float4(sums[0][4 * j + i], sums[0][4 * j + 2 + i], sums[1][4 * j + i], sums[1][4 * j + 2 + i]);
  }
}

/// Adds the sums of all warpgroups and thread blocks of the cluster for this one's share of the outputs, in
/// the order of their rows of W, and writes them.
template <class T>
__device__ __forceinline__ void store_share(const Params& params, const Shared<T>& shared, std::int32_t input,
                                            std::int32_t token, unsigned rank, unsigned ranks) {
  constexpr std::int32_t kWords = T::kTokens * 32, kThreads = T::kConsumers * 128;
#pragma unroll 1
  for (std::int32_t at = static_cast<std::int32_t>(rank) * kThreads + threadIdx.x; at < kWords;
       at += static_cast<std::int32_t>(ranks) * kThreads) {
    const std::int32_t within = at / 32, t = token + within, column = input + at % 32 * 4;
    if (t >= params.tokens) break;  // later words have later tokens
    if (column >= params.cols) continue;
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 2
    for (unsigned other = 0; other < ranks; ++other) {
#pragma unroll
      for (int half = 0; half < T::kConsumers; ++half) {
        const auto* const from = reinterpret_cast<const float4*>(&shared.sums[half][within][at % 32 * 4]);
        const float4 more = ranks == 1 ? *from : ptx::ld_shared_cluster(from, other);
        sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
      }
    }
    *reinterpret_cast<uint2*>(params.out + t * params.out_stride + column) =
        rounded<T>(sum.x, sum.y, sum.z, sum.w);
  }
}

}  // namespace sparseloom::kernels::cuda::semi24_dx
