// The tiles of a team, one after the other, and the lists of a tile.
#pragma once

#include "kernels/block_attention/sm90/backward/params.cuh"

namespace sparseloom::kernels::cuda::attention {

/// A block of keys of a head.
struct KeyWork {
  Sequence sequence;
  int batch, kv_head, block, first_key;

  __device__ __forceinline__ KeyWork(const BackwardParams& params, int tile, int keys)
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

  __device__ __forceinline__ Units(const BackwardParams& params, const KeyWork& work, int head) {
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
  __device__ __forceinline__ std::int32_t query(const BackwardParams& params, int unit) const {
    const int halves = params.q_block / 64;
    const std::int32_t entry = entries[unit / halves], partial = entry & Lists::kPartial;
    return ((entry ^ partial) * params.q_block + unit % halves * 64) | partial;
  }
};

}  // namespace sparseloom::kernels::cuda::attention
