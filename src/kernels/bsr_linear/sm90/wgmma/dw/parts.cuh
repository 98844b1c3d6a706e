// The exchange of partial sums, through the workspace, for items whose tokens are cut into segments. A thread
// block leaves its segment's sums there and continues; the one with the first tokens adds the others' sums in
// the order of the tokens. The exchange is warp by warp: each warp adds the sums of the same warp of the
// other thread block.
//
// The workspace may hold anything when the kernel starts. A flag counts as set if it holds the launch's
// nonce, 64 bits that no two launches share. The warp that waited clears it, so that a CUDA graph may replay
// the same nonce. Two alternatives were rejected. Clearing the flags first would need a second launch before
// a short kernel. A cluster's shared memory would need no flags, but clusters of 4 leave 8 to 12 of 132
// multiprocessors idle, and an item could be cut only into 2 or 4.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/bsr_linear/sm90/wgmma/dw/cut.h"
#include "kernels/shared/ptx/flag.cuh"

namespace sparseloom::kernels::cuda::wgmma::dw {

template <class T>
using Sums = float[T::kWarpgroupStrips][T::kStripSums];

/// Copies a chunk (16 sums per thread) out of the warpgroup's strips laid end to end.
template <class T>
__device__ __forceinline__ void chunk_of(const Sums<T>& sums, int chunk, float (&to)[16]) {
#pragma unroll
  for (int i = 0; i < 16; ++i)
    to[i] = sums[(chunk * 16 + i) / T::kStripSums][(chunk * 16 + i) % T::kStripSums];
}

/// This thread's first float4 in a slot; its others follow at a stride of 128.
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

/// Writes a segment's sums to its slot and sets this warp's flag.
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

/// Waits until all segments in `slots` have arrived, and clears their flags.
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

/// Chunks added at a time: 32 registers of own sums and as many of the others'. One chunk at a time would
/// wait for L2 twice as often.
constexpr int kChunksAtOnce = 2;

/// y += chunks first and first + 1 of all segments. (Adding to the sums themselves would make ptxas copy
/// them.)
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

}  // namespace sparseloom::kernels::cuda::wgmma::dw
