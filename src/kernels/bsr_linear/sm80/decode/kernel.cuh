// Products for small batches, at most 64 tokens, with a block-sparse W. They are bound by the bytes of the
// stored blocks.
//
//   forward  out[t, n] = act(sum_k a[t, k] W[n, k] + bias[n])      dX  out[t, n] = sum_k a[t, k] W[k, n]
//
//   grid.x: strips of 8, 16 or 32 outputs of one block row (dX: block column), all tokens
//
//   the stored blocks, one after the other       [##][##][##][##][##]..
//   cut into chunks of 64 bytes of k             0 1 2 3 0 1 2 3 0 1      warp = chunk % warps
//
// Each warp has its own ring of kStages chunks of W and X, filled by cp.async and drained by mma. There is no
// thread-block barrier until the warps add their partial sums at the end, in the order of the warps. W is
// read from DRAM once. X comes from L2: m / strip times the bytes of W. This is little for strips of 32, but
// takes all the time for narrow ones, whose rows of X fill a quarter of a cache line;
// decode_staged/kernel.cuh serves these if many blocks are stored. Rejected: W in registers (64 bytes per
// lane in flight take the registers of the accumulators of 64 tokens).
#pragma once

#include "kernels/bsr_linear/sm80/decode/config.cuh"
#include "kernels/bsr_linear/sm80/decode/load.cuh"
#include "kernels/bsr_linear/sm80/decode/math.cuh"
#include "kernels/bsr_linear/sm80/decode/store.cuh"

namespace sparseloom::kernels::cuda::decode {

/// Adds up this warp's chunks. On return its ring is free.
template <class Math, class C>
__device__ __forceinline__ void accumulate(const Params<typename C::Element>& params, const Strip& strip,
                                           Stage<C>* ring, int warp, int warps, int lane,
                                           float (&acc)[C::kTokenTiles][C::kOutputTiles][4]) {
  constexpr int kAhead = C::kStages - 1;
  const int chunks = static_cast<int>((strip.length + C::kChunk - 1) / C::kChunk);
  const Bases bases = bases_of<C>(params, strip, lane);
  const auto locate_chunk = [&](int chunk) { return locate<C>(params, strip, chunk, lane); };

  // Prologue. Forward's W needs no column index, so all of its first loads are issued before the indices
  // arrive.
  Vector next = locate_chunk(warp);
#pragma unroll 1
  for (int s = 0; s < kAhead && warp + s * warps < chunks; ++s)
    load_w<C>(params, bases, locate_chunk(warp + s * warps), ring[s], lane);
#pragma unroll 1
  for (int s = 0; s < kAhead; ++s) {
    const Vector vector = next;
    next = locate_chunk(warp + (s + 1) * warps);  // one chunk ahead, here and below
    if (warp + s * warps < chunks) load_x<C>(params, bases, vector, ring[s], lane);
    ptx::cp_async_commit();
  }

  const Stage<C>* full = ring;
  Stage<C>* empty = ring + kAhead;
#pragma unroll 1
  for (int chunk = warp; chunk < chunks; chunk += warps) {
    // Wait for the stage. After the barrier, all lanes have read the previous one, which is refilled now.
    ptx::cp_async_wait<kAhead - 1>();
    __syncwarp();
    // Issue the copies of a later chunk.
    if (chunk + kAhead * warps < chunks) {
      const Vector vector = next;
      next = locate_chunk(chunk + (kAhead + 1) * warps);
      load_w<C>(params, bases, vector, *empty, lane);
      load_x<C>(params, bases, vector, *empty, lane);
    }
    ptx::cp_async_commit();
    Math::template multiply<C>(acc, *full, lane, params.m);
    empty = empty == ring + kAhead ? ring : empty + 1;
    full = full == ring + kAhead ? ring : full + 1;
  }
  ptx::cp_async_wait<0>();
  __syncwarp();
}

/// Adds the warps' partial sums, [warp][token tile][output tile][lane] of float4, and stores the outputs.
template <class C>
__device__ __forceinline__ void finish(const Params<typename C::Element>& params, const Strip& strip,
                                       const Stage<C>* rings, int warps) {
  for (int i = threadIdx.x; i < C::kTokenTiles * C::kOutputTiles * 32; i += 32 * warps) {
    float4 sum = reinterpret_cast<const float4*>(rings)[i];
    for (int warp = 1; warp < warps; ++warp) {
      const float4 part = reinterpret_cast<const float4*>(rings + warp * C::kStages)[i];
      sum.x += part.x;
      sum.y += part.y;
      sum.z += part.z;
      sum.w += part.w;
    }
    const int lane = i % 32, tile = i / 32;
    const int token = tile / C::kOutputTiles * 16 + lane / 4;
    const std::int64_t column = strip.column + tile % C::kOutputTiles * 8 + lane % 4 * 2;
    store_two(params, token, column, sum.x, sum.y);
    store_two(params, token + 8, column, sum.z, sum.w);
  }
}

template <class Math, class C>
__global__ void __launch_bounds__(32 * C::kMostWarps, C::kWarpsPerMultiprocessor / C::kMostWarps)
    decode_kernel(const __grid_constant__ Params<typename C::Element> params) {
  static_assert(kPartialsFit<C>, "a warp's partial sums must fit in its ring");
  extern __shared__ uint4 shared[];
  auto* rings = reinterpret_cast<Stage<C>*>(shared);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
  if constexpr (std::is_same_v<typename C::Walk, Forward>) {  // dX's blocks are not contiguous
    if (warp == 0) prefetch_index<C>(params, blockIdx.x, lane);
  }
  ptx::wait_for_earlier_kernels();
  ptx::let_next_kernel_begin();
  const Strip strip = strip_of<C>(params, blockIdx.x);
  if (strip.column >= params.out_cols) return;  // the strip is padding of a ragged last block

  float acc[C::kTokenTiles][C::kOutputTiles][4] = {};
  Stage<C>* ring = rings + warp * C::kStages;
  accumulate<Math, C>(params, strip, ring, warp, warps, lane, acc);

  // The partial sums overwrite the warp's ring.
  auto* partials = reinterpret_cast<float4*>(ring);
#pragma unroll
  for (int t = 0; t < C::kTokenTiles; ++t) {
#pragma unroll
    for (int n = 0; n < C::kOutputTiles; ++n) {
      const auto& sums = acc[t][n];
      partials[(t * C::kOutputTiles + n) * 32 + lane] = make_float4(sums[0], sums[1], sums[2], sums[3]);
    }
  }
  __syncthreads();
  finish(params, strip, rings, warps);
}

}  // namespace sparseloom::kernels::cuda::decode
