// Sums of an item whose tokens are cut, through the workspace: who has a part leaves it there and goes on,
// who has the first tokens adds the others' in the order of the tokens. Warp by warp: each adds what the warp
// of its place left.
//
// The workspace may hold anything when the kernel starts. A flag counts as up when it holds the launch's
// nonce, 64 bits that no two launches share; who waited takes it down again, so that a CUDA graph may replay
// one nonce. Clearing flags first would be a second launch in front of 50 us of work; a cluster's shared
// memory would need no flags, but clusters of 4 leave 8 to 12 of 132 multiprocessors idle and can only be cut
// in 2 or 4.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/ptx/flag.cuh"
#include "kernels/cuda/sm90/wgmma_sdd_cut.h"

namespace sparseloom::kernels::cuda::wgmma_sdd {

template <class T>
using Sums = float[T::kWarpgroupStrips][T::kStripSums];

/// 16 sums of a warpgroup's strips laid end to end.
template <class T>
__device__ __forceinline__ void chunk_of(const Sums<T>& sums, int chunk, float (&to)[16]) {
#pragma unroll
  for (int i = 0; i < 16; ++i)
    to[i] = sums[(chunk * 16 + i) / T::kStripSums][(chunk * 16 + i) % T::kStripSums];
}

/// This thread's first float4 in a slot; one in each 128 is its.
template <class T, class P>
__device__ __forceinline__ float4* part_of(const P& params, std::int32_t slot, int warpgroup) {
  return params.parts +
         (static_cast<std::int64_t>(slot) * T::kConsumers + warpgroup) * params.part_chunks * (4 * 128) +
         threadIdx.x % 128;
}

template <class T, class P>
__device__ __forceinline__ std::uint64_t* flag_of(const P& params, std::int32_t slot) {
  return params.flags + static_cast<std::int64_t>(slot) * (T::kConsumers * 4) + threadIdx.x / 32;
}

template <class T, class P>
__device__ __forceinline__ void leave_part(const P& params, std::int32_t slot, int warpgroup, int chunks,
                                           const Sums<T>& sums) {
  float4* const part = part_of<T>(params, slot, warpgroup);
#pragma unroll
  for (int chunk = 0; chunk < T::kChunks; ++chunk) {
    if (chunk >= chunks) break;
    float y[16];
    chunk_of<T>(sums, chunk, y);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      __stcg(part + (chunk * 4 + i) * 128, make_float4(y[4 * i], y[4 * i + 1], y[4 * i + 2], y[4 * i + 3]));
  }
  __syncwarp();
  if (threadIdx.x % 32 == 0) ptx::st_release_gpu(flag_of<T>(params, slot), params.nonce);
}

__device__ __forceinline__ std::int32_t slot_of(const Slots& slots, std::int32_t i) {
  return i < slots.pieces ? slots.pieces_first + i : slots.tails_first + i - slots.pieces;
}

/// Until all of them lie there.
template <class T, class P>
__device__ __forceinline__ void await_parts(const P& params, const Slots& slots) {
  if (threadIdx.x % 32 == 0) {
#pragma unroll 1
    for (std::int32_t i = 0; i < slots.pieces + slots.tails; ++i) {
      std::uint64_t* const flag = flag_of<T>(params, slot_of(slots, i));
      while (ptx::ld_acquire_gpu(flag) != params.nonce) {
      }
      *flag = 0;
    }
  }
  __syncwarp();
}

/// Chunks under way at a time: 32 registers of sums and as many of others'. One alone waits twice as often
/// for L2.
constexpr int kChunksAtOnce = 2;

/// y += chunks first, first + 1 of all parts. (To add to the sums themselves would make ptxas copy them.)
template <class T, class P>
__device__ __forceinline__ void add_parts(const P& params, const Slots& slots, int warpgroup, int first,
                                          int chunks, float (&y)[kChunksAtOnce][16]) {
#pragma unroll 1
  for (std::int32_t slot = 0; slot < slots.pieces + slots.tails; ++slot) {
    const float4* const part = part_of<T>(params, slot_of(slots, slot), warpgroup) + first * (4 * 128);
    float4 more[kChunksAtOnce][4];
#pragma unroll
    for (int c = 0; c < kChunksAtOnce; ++c) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        more[c][i] = first + c < chunks ? __ldcg(part + (c * 4 + i) * 128) : make_float4(0, 0, 0, 0);
      }
    }
#pragma unroll
    for (int c = 0; c < kChunksAtOnce; ++c) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        y[c][4 * i] += more[c][i].x;
        y[c][4 * i + 1] += more[c][i].y;
        y[c][4 * i + 2] += more[c][i].z;
        y[c][4 * i + 3] += more[c][i].w;
      }
    }
  }
}

}  // namespace sparseloom::kernels::cuda::wgmma_sdd
