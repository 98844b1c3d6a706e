// Copies of 64 tokens into a tile, and what a tile behind a sequence's end needs.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/shared/ptx/sm90/tma.cuh"
#include "kernels/shared/ptx/sm90/tma_4d.cuh"

namespace sparseloom::kernels::cuda::attention {

/// One box of 64 tokens for each 64 elements of the head, into a tile [head_dim / 64][kTileTokens][128
/// bytes].
template <int kHeadDim, int kTileTokens>
__device__ __forceinline__ void copy_tokens(std::uint32_t shared, const CUtensorMap* map, int token, int head,
                                            int batch, std::uint32_t barrier) {
#pragma unroll
  for (int part = 0; part < kHeadDim / 64; ++part)
    ptx::tma_load_4d(shared + part * kTileTokens * 128, map, part * 64, token, head, batch, barrier);
}

/// Zeroes 64 tokens of a tile from `kept` on, by kThreads threads: behind a sequence's end lie the tokens of
/// the next one, and their NaN times 0 is NaN. A fence_proxy_async and a barrier follow.
template <int kHeadDim, int kTileTokens, int kThreads>
__device__ __forceinline__ void zero_tokens(std::byte* tokens, int kept, int thread) {
  for (int i = max(kept, 0) * 8 + thread; i < 64 * 8; i += kThreads)
#pragma unroll
    for (int part = 0; part < kHeadDim / 64; ++part)
      *reinterpret_cast<uint4*>(tokens + part * kTileTokens * 128 + i * 16) = make_uint4(0, 0, 0, 0);
}

}  // namespace sparseloom::kernels::cuda::attention
