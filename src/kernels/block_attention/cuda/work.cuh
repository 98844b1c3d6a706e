// The tiles of a team, one after the other.
#pragma once

#include "kernels/block_attention/cuda/sequence.cuh"

namespace sparseloom::kernels::cuda::attention {

/// A block of queries of a head, and its list. All lanes of a warp construct it.
struct Work {
  Sequence sequence;
  const std::int32_t* entries;
  int units;  // kNoMore: there is no tile
  int first_query, head, batch;
  int part = 0;
  static constexpr int kNoMore = -1;

  /// `params`: those of the kernel, with common, q_tiles and kv_block.
  template <class Params>
  __device__ __forceinline__ Work(const Params& params, int tile, int queries)
      : sequence(params.common, tile / params.q_tiles / params.common.heads) {
    const Common& common = params.common;
    batch = tile / params.q_tiles / common.heads;
    head = tile / params.q_tiles % common.heads;
    const int block = tile % params.q_tiles;
    first_query = block * queries;
    const std::int64_t list = list_of(common.lists, batch, head, block);
    entries = common.lists.indices + list * common.lists.capacity;
    int count = min(max(common.lists.counts[list], 0), static_cast<int>(common.lists.capacity));
    if (common.causal || common.q_starts != nullptr) {
      const int last = min(first_query + queries, sequence.q_tokens) - 1;
      const int end = common.causal ? min(sequence.kv_tokens, last + sequence.shift + 1) : sequence.kv_tokens;
      count = entries_below(entries, count, (max(end, 0) + params.kv_block - 1) / params.kv_block);
    }
    units = first_query < sequence.q_tokens ? count * (params.kv_block / 64) : 0;
  }

  /// Leaves part `which` of `parts` of the list. `halves`: units of a block.
  __device__ __forceinline__ void take_part(int which, int parts, int halves) {
    const int count = units / halves, begin = count * which / parts, end = count * (which + 1) / parts;
    entries += begin;
    units = (end - begin) * halves;
    part = which;
  }
};

}  // namespace sparseloom::kernels::cuda::attention
