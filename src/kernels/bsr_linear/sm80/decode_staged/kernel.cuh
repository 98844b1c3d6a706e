// Forward for small batches, at most 64 tokens, with blocks of at most 16 x 16, on tensor cores, X staged in
// shared memory:
//
//   out[t, n] = act(sum_k a[t, k] W[n, k] + bias[n])
//
//             k ->  chunk 0   chunk 1 | chunk 2   chunk 3
//   strip 0   ....[#].[#]..[#]....[#] | .[#]....[#][#].[#]
//   strip 1   [#]....[#]...[#].[#]... | ..[#].[#]....[#]..
//   strip 2   ..[#][#]..[#]....[#]... | [#]...[#]..[#]....
//             thread block 0          | thread block 1      of a cluster (split = 2)
//
// One chunk of X is in shared memory while the next one is loaded. W goes from DRAM to the registers of the
// warp that multiplies it. A thread block computes `block_strips` strips, each with `strip_warps` warps that
// take the steps of its block row in turn.
//
// At the end, partial sums are added in the order of the thread blocks of the cluster, then of the warps, so
// that every run gives the same bits. X crosses from L2 once per cluster (each thread block reads its range
// of k) instead of once per block of W. In decode/kernel.cuh, a block's 32-byte rows of X fill a quarter of a
// cache line, so blocks of 16 take a multiple of the time of W's bytes. This kernel measured faster for
// blocks of 16 above a density of about .1. With blocks of 32 and more, decode/kernel.cuh was faster at every
// density. Rejected: partial sums of ranges of k through memory and a second launch, for its host overhead.
#pragma once

#include "kernels/bsr_linear/sm80/decode/store.cuh"
#include "kernels/bsr_linear/sm80/decode_staged/config.cuh"
#include "kernels/bsr_linear/sm80/decode_staged/load.cuh"
#include "kernels/shared/ptx/cluster.cuh"
#include "kernels/shared/ptx/ld.cuh"

namespace sparseloom::kernels::cuda::decode::staged {

/// Multiplies one group. `x`: shared-memory address of this lane's words of its first token.
template <class C>
__device__ __forceinline__ void multiply(float (&acc)[C::kTokenTiles][C::kTiles][4],
                                         const std::uint32_t (&words)[C::kGroupWords], std::uint32_t x,
                                         int m) {
#pragma unroll
  for (int t = 0; t < C::kTokenTiles; ++t) {
    if (t == 3 && m <= 48) break;  // smaller batches have kernels with fewer token tiles
    std::uint32_t low[C::kLaneWords], high[C::kLaneWords];
    ptx::ld_shared(low, x + 16 * t * C::kGroupBytes);
    ptx::ld_shared(high, x + (16 * t + 8) * C::kGroupBytes);
#pragma unroll
    for (int n = 0; n < C::kTiles; ++n) {
      if constexpr (C::kLaneWords == 1) {
        C::Mma::half_mma(acc[t][n], low[0], high[0], words[n]);
      } else {
        C::Mma::mma(acc[t][n], {low[0], high[0], low[1], high[1]}, words[2 * n], words[2 * n + 1]);
      }
    }
  }
}

/// The chunks of X, one after the other; two of them are in shared memory. All warps advance from chunk to
/// chunk together.
template <class C>
class Chunks {
 public:
  __device__ __forceinline__ Chunks(const Params<typename C::Element>& params, const Tiling& tiling, int rank,
                                    char* shared)
      : params_(params),
        tiling_(tiling),
        shared_(shared),
        range_end_(min((rank + 1) * tiling.range, tiling.k_groups)) {
    begin_ = end_ = rank * tiling.range;
    words_ = ptx::shared_address(shared) + threadIdx.x % 32 * (4 * C::kLaneWords);
  }

  __device__ __forceinline__ void start_first() { start(begin_, 0); }
  __device__ __forceinline__ void start_second() { start(begin_ + tiling_.chunk, tiling_.chunk_bytes); }

  __device__ __forceinline__ bool more() const { return end_ < range_end_; }

  /// Advances to the next chunk, which must exist.
  __device__ __forceinline__ void next() {
    const bool is_first = end_ == begin_;
    if (is_first) {
      ptx::cp_async_wait<1>();
    } else {
      ptx::cp_async_wait<0>();
      words_ += here_ == 0 ? tiling_.chunk_bytes : 0u - tiling_.chunk_bytes;
      here_ ^= tiling_.chunk_bytes;
    }
    __syncthreads();  // the chunk has landed, and all threads have read the previous one
    begin_ = end_;
    end_ = min(end_ + tiling_.chunk, range_end_);
    if (!is_first) start(end_, here_ ^ tiling_.chunk_bytes);
  }

  __device__ __forceinline__ int begin() const { return begin_; }
  __device__ __forceinline__ int end() const { return end_; }
  /// The address of lane 4 g + q's words of token g of a group in the chunk.
  __device__ __forceinline__ std::uint32_t lane_words(int group) const {
    return words_ + static_cast<unsigned>(group - begin_) * (C::kTokens * C::kGroupBytes);
  }

 private:
  /// Starts the copies of the chunk that begins at group `begin`, if there is one. Always commits a copy
  /// group.
  __device__ __forceinline__ void start(int begin, unsigned place) {
    stage<C>(params_, {begin, min(begin + tiling_.chunk, range_end_)}, shared_ + place);
    ptx::cp_async_commit();
  }

  const Params<typename C::Element>& params_;
  const Tiling& tiling_;
  char* const shared_;
  const int range_end_;
  int begin_, end_;      // groups of the current chunk; the same before the first
  unsigned here_ = 0;    // its offset: 0 or chunk_bytes
  std::uint32_t words_;  // lane_words() of its first group
};

/// Multiplies the groups of a step that lie in the chunk. Returns false if some remain for later chunks.
template <class C>
__device__ __forceinline__ bool consume(float (&acc)[C::kTokenTiles][C::kTiles][4], Step<C>& step,
                                        const Chunks<C>& chunks, int m) {
  // Groups ascend; absent ones are -1, the largest unsigned number.
  if (step.at[0] >= chunks.begin() &&
      static_cast<unsigned>(step.at[C::kStepGroups - 1]) < static_cast<unsigned>(chunks.end())) {
#pragma unroll
    for (int u = 0; u < C::kStepGroups; ++u)
      multiply<C>(acc, step.words[u], chunks.lane_words(step.at[u]), m);
    return true;
  }
  int most = -1;
#pragma unroll
  for (int u = 0; u < C::kStepGroups; ++u) {
    if (step.at[u] >= chunks.begin() && step.at[u] < chunks.end())
      multiply<C>(acc, step.words[u], chunks.lane_words(step.at[u]), m);
    most = max(most, step.at[u]);
  }
  return most < chunks.end();
}

/// Adds the partial sums of the cluster's thread blocks, [warp][token tile][tile][lane] of float4, and stores
/// this thread block's share of the outputs.
template <class C>
__device__ __forceinline__ void finish(const Params<typename C::Element>& params, const Tiling& tiling,
                                       const float4* partials, int first_strip, int rank) {
  const int all = tiling.block_strips * C::kVectors, threads = blockDim.x;
  for (int i = rank * threads + threadIdx.x; i < all; i += tiling.split * threads) {
    const int in_block = i / C::kVectors, vector = i % C::kVectors;
    const int lane = vector % 32, tile = vector / 32;
    const int strip = first_strip + in_block, token = tile / C::kTiles * 16 + lane / 4;
    if (strip >= tiling.strips || token >= params.m) continue;
    float4 sum = {};
    for (int block = 0; block < tiling.split; ++block) {
      for (int warp = 0; warp < tiling.strip_warps; ++warp) {
        const float4* place = partials + (in_block * tiling.strip_warps + warp) * C::kVectors + vector;
        const float4 part = tiling.split == 1 ? *place : ptx::ld_shared_cluster(place, block);
        sum.x += part.x;
        sum.y += part.y;
        sum.z += part.z;
        sum.w += part.w;
      }
    }
    const int block_row = strip >> params.strips_shift,
              in_block_row = strip & ((1 << params.strips_shift) - 1);
    const std::int64_t column = std::int64_t{block_row} * params.out_side + in_block_row * C::kStrip +
                                tile % C::kTiles * 8 + lane % 4 * 2;
    store_two(params, token, column, sum.x, sum.y);
    store_two(params, token + 8, column, sum.z, sum.w);
  }
}

template <class C>
__global__ void __launch_bounds__(32 * C::kMostWarps, 1)
    decode_staged_kernel(const __grid_constant__ Params<typename C::Element> params,
                         const __grid_constant__ Tiling tiling) {
  extern __shared__ uint4 shared[];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int rank = static_cast<int>(blockIdx.x) % tiling.split;
  const int first_strip = static_cast<int>(blockIdx.x) / tiling.split * tiling.block_strips;

  // The index lists come from DRAM, so they are requested before the copies of X queue up.
  const int strip = first_strip + warp / tiling.strip_warps;
  const int block_row_index = strip >> params.strips_shift;
  const int in_block = (strip & ((1 << params.strips_shift) - 1)) * C::kStrip;
  const bool present =
      strip < tiling.strips && std::int64_t{block_row_index} * params.out_side + in_block < params.out_cols;
  std::int32_t first = present ? __ldg(params.first + block_row_index) : 0;
  std::int32_t last = present ? __ldg(params.first + block_row_index + 1) : 0;

  Chunks<C> chunks(params, tiling, rank, reinterpret_cast<char*>(shared));
  chunks.start_first();

  if (tiling.split > 1) {
    last = lower_bound(params.outer, first, last, (rank + 1) * tiling.range, lane);
    first = lower_bound(params.outer, first, last, rank * tiling.range, lane);
  }
  Blocks<C> blocks(params, tiling, in_block, lane, first, last - first, warp % tiling.strip_warps);
  // Prologue: load the first steps of W, and start the second chunk of X.
  Step<C> steps[C::kSteps] = {};
#pragma unroll
  for (Step<C>& step : steps) blocks.load(step);
  chunks.start_second();

  float acc[C::kTokenTiles][C::kTiles][4] = {};
  // Mainloop: multiply the chunk's groups, load new steps for finished ones, then advance the chunk.
  while (true) {
    bool waits = false;
    int none = -1;
#pragma unroll
    for (Step<C>& step : steps) {
      none &= step.at[0];
      if (step.at[0] < 0) continue;
      if (consume(acc, step, chunks, params.m)) {
        blocks.load(step);
      } else {
        waits = true;  // all later steps wait too: their groups lie further on
      }
    }
    if (waits || (none < 0 && chunks.more())) {
      chunks.next();
    } else if (none < 0) {
      break;
    }
  }
  ptx::cp_async_wait<0>();
  // All threads are done with X: the partial sums overwrite it.
  __syncthreads();

  auto* partials = reinterpret_cast<float4*>(shared);
#pragma unroll
  for (int t = 0; t < C::kTokenTiles; ++t) {
#pragma unroll
    for (int n = 0; n < C::kTiles; ++n)
      partials[warp * C::kVectors + (t * C::kTiles + n) * 32 + lane] =
          make_float4(acc[t][n][0], acc[t][n][1], acc[t][n][2], acc[t][n][3]);
  }
  if (tiling.split > 1) {
    ptx::cluster_sync();
  } else {
    __syncthreads();
  }
  finish<C>(params, tiling, partials, first_strip, rank);
  if (tiling.split > 1) ptx::cluster_sync();  // the other thread blocks may still read these partial sums
}

}  // namespace sparseloom::kernels::cuda::decode::staged
