// The tiles of a team, one after the other, and the lists of a tile.
#pragma once

#include "kernels/block_attention/cuda/sequence.cuh"

namespace sparseloom::kernels::cuda::attention {

/// A block of keys of a head.
struct KeyWork {
  Sequence sequence;
  int batch, kv_head, block, first_key;

  /// `params`: those of the kernel, with common, kv_tiles and kv_heads.
  template <class Params>
  __device__ __forceinline__ KeyWork(const Params& params, int tile, int keys)
      : sequence(params.common, tile / params.kv_tiles / params.kv_heads) {
    batch = tile / params.kv_tiles / params.kv_heads;
    kv_head = tile / params.kv_tiles % params.kv_heads;
    block = tile % params.kv_tiles;
    first_key = block * keys;
  }
};

/// The units of a query head that meet the tile. All lanes of a warp construct it.
struct Units {
  const std::int32_t* entries;  // the first that counts
  int units;

  /// `params`: with common and q_block.
  template <class Params>
  __device__ __forceinline__ Units(const Params& params, const KeyWork& work, int head) {
    const Common& common = params.common;
    const std::int64_t list = list_of(common.lists, work.batch, head, work.block);
    entries = common.lists.indices + list * common.lists.capacity;
    int count = min(max(common.lists.counts[list], 0), static_cast<int>(common.lists.capacity));
    if (common.q_starts != nullptr)
      count = entries_below(entries, count, (work.sequence.q_tokens + params.q_block - 1) / params.q_block);
    if (common.causal) {
      // Of blocks that end before the first query that sees a key of the tile, nothing is kept.
      const int first = max(work.first_key - work.sequence.shift, 0) / params.q_block;
      const int before = entries_below(entries, count, first);
      entries += before;
      count -= before;
    }
    units = count * (params.q_block / 64);
  }

  /// The first query of a unit, and kPartial.
  template <class Params>
  __device__ __forceinline__ std::int32_t query(const Params& params, int unit) const {
    const int halves = params.q_block / 64;
    const std::int32_t entry = entries[unit / halves], partial = entry & Lists::kPartial;
    return ((entry ^ partial) * params.q_block + unit % halves * 64) | partial;
  }
};

/// Whether some pairs of `keys` keys from the tile's first and of the 64 queries from `query` (and kPartial)
/// do not meet.
__device__ __forceinline__ bool is_masked(const Common& common, const KeyWork& work, int keys,
                                          std::int32_t query) {
  const int first = query & ~Lists::kPartial;
  return first + 64 > work.sequence.q_tokens || work.first_key + keys > work.sequence.kv_tokens ||
         (common.causal && work.first_key + keys - 1 > first + work.sequence.shift) ||
         ((query & Lists::kPartial) != 0 && common.q_documents != nullptr);
}

/// Scores of keys and queries that do not meet become -infinity. Lane t has the keys t / 4 and 8 further of
/// its warp's 16, and the queries 2 (t % 4) and the next of each 8.
template <int kScores>
__device__ __forceinline__ void mask_scores(float (&scores)[kScores], std::int32_t query,
                                            const Common& common, const KeyWork& work, int group) {
  const bool partial = (query & Lists::kPartial) != 0 && common.q_documents != nullptr;
  query &= ~Lists::kPartial;
  const Sequence& sequence = work.sequence;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  const int column = query + lane % 4 * 2;
  const bool ragged = common.q_starts != nullptr;
  const std::int32_t* of_queries =
      common.q_documents + sequence.q_first + (ragged ? 0 : std::int64_t{work.batch} * common.q_tokens);
  const std::int32_t* of_keys =
      common.kv_documents + sequence.kv_first + (ragged ? 0 : std::int64_t{work.batch} * common.kv_tokens);
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const int key = work.first_key + group * 64 + warp * 16 + lane / 4 + 8 * row;
    const bool exists = key < sequence.kv_tokens;
    // Queries before this one do not see the key.
    const int first = !exists ? 0x7fffffff : common.causal ? key - sequence.shift : 0;
    const std::int32_t document = partial && exists ? of_keys[key] : 0;
#pragma unroll
    for (int j = 0; j < kScores / 4; ++j)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int at = column + 8 * j + i;
        bool kept = at >= first;
        if (partial && at < sequence.q_tokens) kept = kept && of_queries[at] == document;
        if (!kept) scores[4 * j + 2 * row + i] = -INFINITY;
      }
  }
}

}  // namespace sparseloom::kernels::cuda::attention
