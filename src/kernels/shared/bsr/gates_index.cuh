// The index of the blocks whose gate is not zero (live blocks): their lists, and each block's rank.
//
//   place, crow, col     a thread block takes kChunk blocks of the weight
//   ccol, row, slot      the same over the transposed lists
//
// A chunk's first rank is the number of live blocks before it, which each thread block recounts from the
// gates: they are in L2, and no thread block waits for another. Rejected: one thread block for all, as in
// topology.cuh, which scans 65536 gates (4096 x 4096 in blocks of 16) in 32 rounds while other
// multiprocessors idle.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "sparseloom/packed_index.h"

namespace sparseloom::kernels::cuda::gating {

inline constexpr int kThreads = 256, kWarps = kThreads / 32;
inline constexpr unsigned kWarp = 0xffffffffu;
inline constexpr int kPerThread = 8, kChunk = kThreads * kPerThread;  // blocks of a thread, of a thread block
inline constexpr int kFew = 32 * kThreads;  // blocks of a LiveSet, whose gates one thread block reads

/// The weight, its gates, and the outputs.
struct Lists {
  std::int64_t blocks, block_rows, block_cols;
  const std::int32_t *crow, *col, *ccol, *row, *slot;  // the weight's
  const float* gates;
  const void* values;
  std::int32_t *index, *place;  // the live blocks' index and each block's rank
  void* gated;
  IndexSegments at;
  unsigned chunks;
};

__device__ __forceinline__ std::int32_t warp_sum(std::int32_t x) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(kWarp, x, distance);
  return x;
}

/// Ranks of a chunk's live entries among all, and the total. The warps' sums come first, at multiples of 16
/// bytes: after `through`, the compiler widened their loads to whole vectors that began with its last entry,
/// which another thread writes meanwhile (racecheck).
struct Ranks {
  alignas(16) std::int32_t before[kWarps];
  std::int32_t all[kWarps], own[kWarps];
  std::int32_t through[kChunk + 1];  // live entries before entry `first + i`
};

/// Fills ranks.through and returns the number of live entries of [0, count). live(i) says whether i is.
template <class Live>
__device__ __forceinline__ std::int32_t rank_chunk(Ranks& ranks, std::int64_t first, std::int64_t count,
                                                   const Live& live) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  std::int32_t before = 0, all = 0;
#pragma unroll 8
  for (std::int64_t i = threadIdx.x; i < count; i += kThreads) {
    const bool is = live(i);
    all += is;
    before += is && i < first;
  }
  bool mine[kPerThread];
  std::int32_t own = 0;
#pragma unroll
  for (int u = 0; u < kPerThread; ++u) {
    const std::int64_t i = first + threadIdx.x * kPerThread + u;
    mine[u] = i < count && live(i);
    own += mine[u];
  }
  std::int32_t through = own;  // of this lane and the lower ones
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const std::int32_t lower = __shfl_up_sync(kWarp, through, distance);
    if (lane >= distance) through += lower;
  }
  before = warp_sum(before), all = warp_sum(all);
  if (lane == 31) ranks.before[warp] = before, ranks.all[warp] = all, ranks.own[warp] = through;
  __syncthreads();
  std::int32_t rank = through - own, total = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    rank += ranks.before[w] + (w < warp ? ranks.own[w] : 0);
    total += ranks.all[w];
  }
#pragma unroll
  for (int u = 0; u < kPerThread; ++u) {
    ranks.through[threadIdx.x * kPerThread + u] = rank;
    rank += mine[u];
  }
  if (threadIdx.x == kThreads - 1) ranks.through[kChunk] = rank;
  __syncthreads();
  return total;
}

/// to[r] = the number of live entries before entry bounds[r], for those r whose entry is in this chunk. The
/// last chunk includes the end of the list.
__device__ __forceinline__ void write_bounds(const Ranks& ranks, std::int64_t first, bool last,
                                             const std::int32_t* bounds, std::int64_t count,
                                             std::int32_t* to) {
  for (std::int64_t r = threadIdx.x; r < count; r += kThreads) {
    const std::int64_t place = __ldg(bounds + r) - first;
    if (place >= 0 && (place < kChunk || (last && place == kChunk))) to[r] = ranks.through[place];
  }
}

/// Zeros the entries of this chunk that are free slots.
__device__ __forceinline__ void clear_free(std::int32_t* list, std::int64_t first, std::int64_t live,
                                           std::int64_t count) {
  const std::int64_t end = min(first + kChunk, count);
  for (std::int64_t i = max(first, live) + threadIdx.x; i < end; i += kThreads) list[i] = 0;
}

__device__ __forceinline__ void clear_gap(std::int32_t* index, std::int64_t begin, std::int64_t end) {
  for (std::int64_t i = begin + threadIdx.x; i < end; i += kThreads) index[i] = 0;
}

__device__ __forceinline__ void write_rows(const Lists& lists) {
  __shared__ Ranks ranks;
  const std::int64_t first = std::int64_t{blockIdx.x} * kChunk, blocks = lists.blocks;
  const auto live = [&](std::int64_t i) { return __ldg(lists.gates + i) != 0; };
  const std::int32_t total = rank_chunk(ranks, first, blocks, live);
  std::int32_t* const col = lists.index + lists.at.col;
  const std::int64_t end = min(first + kChunk, blocks);
  for (std::int64_t i = first + threadIdx.x; i < end; i += kThreads) {
    const bool is = live(i);
    const std::int32_t to = ranks.through[i - first];
    lists.place[i] = is ? to : -1;
    if (is) col[to] = __ldg(lists.col + i);
  }
  clear_free(col, first, total, blocks);
  write_bounds(ranks, first, blockIdx.x + 1 == lists.chunks, lists.crow, lists.block_rows + 1,
               lists.index + lists.at.crow);
  if (blockIdx.x != 0) return;
  clear_gap(lists.index, lists.at.crow + lists.block_rows + 1, lists.at.col);
  clear_gap(lists.index, lists.at.col + blocks, lists.at.ccol);
}

/// All live blocks as bits, and the number of live blocks before each word.
struct LiveSet {
  std::uint32_t word[kThreads];
  std::int32_t before[kThreads];

  /// The rank of block i among the live ones; -1 if it is not live.
  __device__ std::int32_t place(std::int64_t i) const {
    const std::uint32_t bits = word[i / 32], bit = 1u << (i % 32);
    return (bits & bit) != 0 ? before[i / 32] + __popc(bits & (bit - 1)) : -1;
  }
};

/// Fills the set from at most kFew gates; the whole thread block.
__device__ __forceinline__ void fill(LiveSet& live, const float* gates, std::int64_t blocks) {
  __shared__ alignas(16) std::int32_t sums[kWarps];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll 4
  for (int w = warp; w < kThreads; w += kWarps) {
    const std::int64_t i = std::int64_t{w} * 32 + lane;
    const std::uint32_t bits = __ballot_sync(kWarp, i < blocks && __ldg(gates + i) != 0);
    if (lane == 0) live.word[w] = bits;
  }
  __syncthreads();
  const std::int32_t own = __popc(live.word[threadIdx.x]);
  std::int32_t through = own;  // of this word and those of lower lanes
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const std::int32_t lower = __shfl_up_sync(kWarp, through, distance);
    if (lane >= distance) through += lower;
  }
  if (lane == 31) sums[warp] = through;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < kWarps; ++w) through += w < warp ? sums[w] : 0;
  live.before[threadIdx.x] = through - own;
  __syncthreads();
}

/// chunk: index of a run of kChunk entries of the transposed lists. place(i): the rank of block i, or -1.
template <class Place>
__device__ __forceinline__ void write_columns(const Lists& lists, unsigned chunk, const Place& place_of) {
  __shared__ Ranks ranks;
  const std::int64_t first = std::int64_t{chunk} * kChunk, blocks = lists.blocks;
  const auto place = [&](std::int64_t t) { return place_of(__ldg(lists.slot + t)); };
  const std::int32_t total = rank_chunk(ranks, first, blocks, [&](std::int64_t t) { return place(t) >= 0; });
  std::int32_t *const row = lists.index + lists.at.row, *const slot = lists.index + lists.at.slot;
  const std::int64_t end = min(first + kChunk, blocks);
  for (std::int64_t t = first + threadIdx.x; t < end; t += kThreads) {
    const std::int32_t from = place(t), to = ranks.through[t - first];
    if (from < 0) continue;
    row[to] = __ldg(lists.row + t);
    slot[to] = from;
  }
  clear_free(row, first, total, blocks);
  clear_free(slot, first, total, blocks);
  write_bounds(ranks, first, chunk + 1 == lists.chunks, lists.ccol, lists.block_cols + 1,
               lists.index + lists.at.ccol);
  if (chunk != 0) return;
  clear_gap(lists.index, lists.at.ccol + lists.block_cols + 1, lists.at.row);
  clear_gap(lists.index, lists.at.row + blocks, lists.at.slot);
}

}  // namespace sparseloom::kernels::cuda::gating
