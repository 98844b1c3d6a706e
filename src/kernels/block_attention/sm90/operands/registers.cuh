// Sums in registers that leave them.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/shared/ptx/address.cuh"
#include "kernels/shared/ptx/math.cuh"
#include "kernels/shared/ptx/sm90/named_barrier.cuh"

namespace sparseloom::kernels::cuda::attention {

/// Writes a warpgroup's sums [64 tokens][head_dim] times factors[i] (rows t / 4 and 8 further) to memory, in
/// 16 bits. They go through `staging`, 64 rows of a tile [head_dim / 64][kTileTokens][128 bytes], so that
/// rows leave as 16 bytes x 8 lanes: whole lines. `to` is the first token, of which `tokens` exist.
template <class Element, int kTileTokens, int kSums>
__device__ __forceinline__ void store_tokens(std::uint16_t* to, std::int64_t stride, int tokens,
                                             std::byte* staging, const float (&sums)[kSums],
                                             const float (&factors)[2], int barrier) {
  const int thread = threadIdx.x % 128, lane = threadIdx.x % 32;
  const int row = thread / 32 * 16 + lane / 4;
  const std::uint32_t shared = ptx::shared_address(staging);
#pragma unroll
  for (int j = 0; j < kSums / 4; ++j)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int at = row + 8 * i;
      const std::uint32_t chunk = (j % 8) ^ (at % 8);
      ptx::st_shared_b32(
          shared + j / 8 * kTileTokens * 128 + at * 128 + chunk * 16 + lane % 4 * 4,
          Element::pair(sums[4 * j + 2 * i] * factors[i], sums[4 * j + 2 * i + 1] * factors[i]));
    }
  ptx::named_barrier_sync<128>(barrier);
#pragma unroll
  for (int part = 0; part < kSums / 32; ++part)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int at = i * 16 + thread / 8, chunk = thread % 8;
      if (at >= tokens) continue;
      *reinterpret_cast<uint4*>(to + at * stride + part * 64 + chunk * 8) = *reinterpret_cast<const uint4*>(
          staging + part * kTileTokens * 128 + at * 128 + (chunk ^ at % 8) * 16);
    }
}

/// The same for zeros, straight to memory.
template <int kHeadDim>
__device__ __forceinline__ void store_zero_tokens(std::uint16_t* to, std::int64_t stride, int tokens) {
  constexpr int kPieces = kHeadDim / 8;
  for (int i = threadIdx.x % 128; i < 64 * kPieces; i += 128)
    if (i / kPieces < tokens)
      *reinterpret_cast<uint4*>(to + i / kPieces * stride + i % kPieces * 8) = make_uint4(0, 0, 0, 0);
}

}  // namespace sparseloom::kernels::cuda::attention
