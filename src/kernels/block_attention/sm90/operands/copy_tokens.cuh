// Copies of 64 tokens into a tile, and what a tile behind a sequence's end needs.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/shared/ptx/sm90/tma.cuh"

namespace sparseloom::kernels::cuda::ptx {

/// tma.cuh's copy for four dimensions, x0 the contiguous one: starts reading the box whose first element is
/// (x3, x2, x1, x0); `barrier` counts the bytes that arrive.
__device__ __forceinline__ void tma_load_4d(std::uint32_t shared, const CUtensorMap* map, std::int32_t x0,
                                            std::int32_t x1, std::int32_t x2, std::int32_t x3,
                                            std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, "
      "%5}], [%6];" ::"r"(shared),
      "l"(map), "r"(x0), "r"(x1), "r"(x2), "r"(x3), "r"(barrier)
      : "memory");
}

}  // namespace sparseloom::kernels::cuda::ptx

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
