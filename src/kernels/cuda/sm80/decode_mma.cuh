// Products of at most 64 tokens with a block-sparse W on tensor cores, bound by the bytes of the stored blocks.
//
//   forward  out[t, n] = act(sum_k a[t, k] W[n, k] + bias[n])      dX  out[t, n] = sum_k a[t, k] W[k, n]
//
//             k ->  chunk 0   chunk 1 | chunk 2   chunk 3     X of a chunk lies in shared memory, the next one is on its way;
//   strip 0   ....[#].[#]..[#]....[#] | .[#]....[#][#].[#]    W goes from memory to the registers of the warp that multiplies it.
//   strip 1   [#]....[#]...[#].[#]... | ..[#].[#]....[#]..    A thread block serves `block_strips` strips, each with `strip_warps`
//   strip 2   ..[#][#]..[#]....[#]... | [#]...[#]..[#]....    warps that take the steps of its line in turn.
//             thread block 0          | thread block 1  of a cluster (split = 2)
//
// At the end partial sums are added in the order of the thread blocks of the cluster, then of the warps: the same bits in every
// run. X crosses from L2 once per cluster and thread block instead of once per strip. Measured before, with X read for every block:
// strips of 32 outputs moved as much X as W and took 1.4 times the time of W's bytes, strips of 16, whose 32-byte rows of X fill a
// quarter of a line, 3.3 times, strips of 8 11 times (H200, 32 x 12288 x 12288, density 0.5). Rejected: partial sums of ranges of k
// through memory and a second launch, which costs the host 4.5 us.
#pragma once

#include "kernels/cuda/ptx/cluster.cuh"
#include "kernels/cuda/ptx/ld_shared.cuh"
#include "kernels/cuda/ptx/movmatrix.cuh"
#include "kernels/cuda/sm80/decode_mma_config.cuh"
#include "kernels/cuda/sm80/decode_mma_load.cuh"
#include "kernels/cuda/sm80/decode_store.cuh"

namespace sparseloom::kernels::cuda::decode {

/// This lane's words of X for one token.
template <class C>
struct Fragment {
  std::uint32_t word[C::kPieces];

  explicit __device__ __forceinline__ Fragment(std::uint32_t shared) {
    ptx::ld_shared(word, shared);
#pragma unroll
    for (std::uint32_t& w : word) w = C::Mma::operand(w);
  }
};

/// Word `piece` of W for the mma of tile n, after prepare().
template <class C>
__device__ constexpr int word_of(int n, int piece) {
  return C::kForward ? n * C::kPieces + piece : piece * C::kTiles + n;
}

/// Turns the words of a group, as load_group has left them, into operands. In place: a step's registers are not there twice.
template <class C>
__device__ __forceinline__ void prepare(std::uint32_t (&words)[C::kGroupWords]) {
#pragma unroll
  for (std::uint32_t& word : words) {
    if constexpr (!C::kForward && C::kSize == 2) {
      word = ptx::movmatrix_trans(word);
    } else {
      word = C::Mma::operand(word);
    }
  }
}

/// One group, once. `x`: this lane's words of its first token.
template <class C>
__device__ __forceinline__ void multiply(float (&acc)[C::kTokenTiles][C::kTiles][4], std::uint32_t (&words)[C::kGroupWords],
                                         std::uint32_t x, int m) {
  prepare<C>(words);
#pragma unroll
  for (int t = 0; t < C::kTokenTiles; ++t) {
    if (t == 3 && m <= 48) break;  // fewer tokens have kernels of fewer tiles
    const Fragment<C> low(x + 16 * t * C::kGroupBytes), high(x + (16 * t + 8) * C::kGroupBytes);
    if constexpr (C::kPieces == 1) {
#pragma unroll
      for (int n = 0; n < C::kTiles; ++n) C::Mma::half_mma(acc[t][n], low.word[0], high.word[0], words[n]);
    } else {
#pragma unroll
      for (int h = 0; h < C::kPieces; h += 2) {
        const std::uint32_t a[4] = {low.word[h], high.word[h], low.word[h + 1], high.word[h + 1]};
#pragma unroll
        for (int n = 0; n < C::kTiles; ++n) C::Mma::mma(acc[t][n], a, words[word_of<C>(n, h)], words[word_of<C>(n, h + 1)]);
      }
    }
  }
}

/// The chunks of X, one after the other, two of them in shared memory. All warps go from chunk to chunk together.
template <class C>
class Chunks {
 public:
  __device__ __forceinline__ Chunks(const Params<typename C::Element>& params, const Tiling& tiling, int rank, char* shared)
      : params_(params), tiling_(tiling), shared_(shared), range_end_(min((rank + 1) * tiling.range, tiling.k_groups)) {
    begin_ = end_ = rank * tiling.range;
    words_ = ptx::shared_address(shared) + threadIdx.x % 32 * (4 * C::kPieces);
  }

  __device__ __forceinline__ void start_first() { start(begin_, 0); }
  __device__ __forceinline__ void start_second() { start(begin_ + tiling_.chunk, tiling_.chunk_bytes); }

  __device__ __forceinline__ bool more() const { return end_ < range_end_; }

  /// Goes to the next chunk, for which there must be one.
  __device__ __forceinline__ void next() {
    const bool is_first = end_ == begin_;
    if (is_first) {
      ptx::cp_async_wait<1>();
    } else {
      ptx::cp_async_wait<0>();
      words_ += here_ == 0 ? tiling_.chunk_bytes : 0u - tiling_.chunk_bytes;
      here_ ^= tiling_.chunk_bytes;
    }
    __syncthreads();  // the chunk is here for all, and all have done with the one before it
    begin_ = end_;
    end_ = min(end_ + tiling_.chunk, range_end_);
    if (!is_first) start(end_, here_ ^ tiling_.chunk_bytes);
  }

  __device__ __forceinline__ int begin() const { return begin_; }
  __device__ __forceinline__ int end() const { return end_; }
  /// Where this lane, 4 g + q, finds its words of a held group's token g.
  __device__ __forceinline__ std::uint32_t lane_words(int group) const {
    return words_ + static_cast<unsigned>(group - begin_) * (C::kTokens * C::kGroupBytes);
  }

 private:
  /// Starts the copies of the chunk from group `begin` on, if there is one; always closes a group of copies.
  __device__ __forceinline__ void start(int begin, unsigned place) {
    stage<C>(params_, {begin, min(begin + tiling_.chunk, range_end_)}, shared_ + place);
    ptx::cp_async_commit();
  }

  const Params<typename C::Element>& params_;
  const Tiling& tiling_;
  char* const shared_;
  const int range_end_;
  int begin_, end_;      // groups of the current chunk; the same before the first
  unsigned here_ = 0;    // its place: 0 or chunk_bytes
  std::uint32_t words_;  // lane_words of its first group
};

/// Multiplies those groups of a step that the chunk holds. False if that leaves some for later chunks.
template <class C>
__device__ __forceinline__ bool consume(float (&acc)[C::kTokenTiles][C::kTiles][4], Step<C>& step, const Chunks<C>& chunks, int m) {
  // Groups ascend; absent ones, -1, are beyond all.
  if (step.at[0] >= chunks.begin() && static_cast<unsigned>(step.at[C::kStepGroups - 1]) < static_cast<unsigned>(chunks.end())) {
#pragma unroll
    for (int u = 0; u < C::kStepGroups; ++u) multiply<C>(acc, step.words[u], chunks.lane_words(step.at[u]), m);
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

/// Adds the partial sums of the cluster's thread blocks, [warp][token tile][tile][lane] of float4, and stores its share of them.
template <class C>
__device__ __forceinline__ void finish(const Params<typename C::Element>& params, const Tiling& tiling, const float4* partials,
                                       int first_strip, int rank) {
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
    const int n = tile % C::kTiles, q = lane % 4;
    // Columns 2q and 2q + 1 of the tile; load_group says which they are of the strip.
    constexpr int kApart = !C::kForward && C::kSize == 4 ? C::kTiles : 1;
    const int in_strip = C::kForward ? 8 * n + 2 * q : 2 * C::kTiles * q + (C::kSize == 4 ? n : 2 * n);
    const int line = strip >> params.strips_shift, in_line = strip & ((1 << params.strips_shift) - 1);
    const std::int64_t column = std::int64_t{line} * params.out_side + in_line * C::kStrip + in_strip;
    store_two<kApart>(params, token, column, sum.x, sum.y);
    store_two<kApart>(params, token + 8, column, sum.z, sum.w);
  }
}

template <class C>
__global__ void __launch_bounds__(32 * C::kMostWarps, 1)
    decode_mma_kernel(const __grid_constant__ Params<typename C::Element> params, const __grid_constant__ Tiling tiling) {
  extern __shared__ uint4 shared[];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int rank = static_cast<int>(blockIdx.x) % tiling.split;
  const int first_strip = static_cast<int>(blockIdx.x) / tiling.split * tiling.block_strips;

  // The index lists come from memory: asked for before the copies of X queue up.
  const int strip = first_strip + warp / tiling.strip_warps;
  const int line_index = strip >> params.strips_shift;
  const int in_block = (strip & ((1 << params.strips_shift) - 1)) * C::kStrip;
  const bool present = strip < tiling.strips && std::int64_t{line_index} * params.out_side + in_block < params.out_cols;
  std::int32_t first = present ? __ldg(params.first + line_index) : 0;
  std::int32_t last = present ? __ldg(params.first + line_index + 1) : 0;

  Chunks<C> chunks(params, tiling, rank, reinterpret_cast<char*>(shared));
  chunks.start_first();

  if (tiling.split > 1) {
    const int range = tiling.range >> tiling.group_shift;  // blocks
    last = lower_bound(params.outer, first, last, (rank + 1) * range, lane);
    first = lower_bound(params.outer, first, last, rank * range, lane);
  }
  const char* w = reinterpret_cast<const char*>(params.values) + lane_offset<C>(params.block_row_bytes, in_block, lane);
  Blocks<C> blocks(params, tiling, w, first, last - first, warp % tiling.strip_warps);
  Step<C> steps[C::kSteps] = {};
#pragma unroll
  for (Step<C>& step : steps) blocks.load(step);
  chunks.start_second();

  float acc[C::kTokenTiles][C::kTiles][4] = {};
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
        waits = true;  // so do all steps that have been loaded after it: their groups are behind
      }
    }
    if (waits || (none < 0 && chunks.more())) {
      chunks.next();
    } else if (none < 0) {
      break;
    }
  }
  ptx::cp_async_wait<0>();
  __syncthreads();  // X is done with, partial sums take its place

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
  if (tiling.split > 1) ptx::cluster_sync();  // the others may still read these partial sums
}

}  // namespace sparseloom::kernels::cuda::decode
