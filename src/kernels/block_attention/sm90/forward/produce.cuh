// The producer: for each tile it tells the consumers the tile and copies its queries, and then K and V of
// each step, in the order in which they are used: K0 K1 V0 K2 V1 ..
#pragma once

#include "kernels/block_attention/cuda/work.cuh"
#include "kernels/block_attention/sm90/forward/params.cuh"
#include "kernels/block_attention/sm90/operands/copy_tokens.cuh"
#include "kernels/shared/pipeline/pipeline.cuh"

namespace sparseloom::kernels::cuda::attention {

/// A first key that lies outside of every sequence: of the units that fill up a step.
inline constexpr std::int32_t kNoKey = Lists::kPartial - 128;

/// Passes the tile to the consumers, with its queries if it has keys.
template <class T>
__device__ __forceinline__ void copy_queries(const ForwardParams& params, TeamStorage<T>& shared,
                                             const Work& work, unsigned tile_turn) {
  const StageOf<T::kQBuffers> buffer(tile_turn);
  const std::uint32_t q_full = ptx::shared_address(&shared.q_full[buffer.index]);
  ptx::mbarrier_wait(ptx::shared_address(&shared.q_empty[buffer.index]), buffer.parity ^ 1);
  shared.work[buffer.index] = work;
  Pipeline::expect(q_full, work.units > 0 ? T::kQBytes : 0);
  if (work.units <= 0) return;
#pragma unroll
  for (int group = 0; group < T::kGroups; ++group)
    copy_tokens<T::kHeadDim, T::kQueries>(ptx::shared_address(shared.q[buffer.index]) + group * 64 * 128,
                                          &params.q, work.sequence.q_first + work.first_query + group * 64,
                                          work.head, work.sequence.batch, q_full);
}

/// Copies the keys and values of a tile.
template <class T>
__device__ __forceinline__ void copy_keys(const ForwardParams& params, TeamStorage<T>& shared,
                                          const Work& work, unsigned turn) {
  const Pipeline pipeline(shared.full, shared.empty);
  const auto& [sequence, entries, units, first_query, head, batch, part] = work;
  const int kv_head = head / params.common.heads_per_kv;
  const std::uint32_t ring = ptx::shared_address(shared.ring);
  const int halves = params.kv_block / 64;
  const auto copy = [&](const CUtensorMap* map, const std::int32_t(&keys)[T::kUnits], bool record) {
    const StageOf<T::kSlots> slot(turn++);
    pipeline.acquire(slot.index, slot.parity ^ 1);
    if (record)
#pragma unroll
      for (int unit = 0; unit < T::kUnits; ++unit) shared.first_key[slot.index][unit] = keys[unit];
    const std::uint32_t full = pipeline.full(slot.index);
    Pipeline::expect(full, T::kTileBytes);
#pragma unroll
    for (int unit = 0; unit < T::kUnits; ++unit)
      copy_tokens<T::kHeadDim, T::kKeys>(ring + slot.index * T::kTileBytes + unit * 64 * 128, map,
                                         sequence.kv_first + (keys[unit] & ~Lists::kPartial), kv_head,
                                         sequence.batch, full);
  };
  const auto key_of = [&](int unit) {
    if (unit >= units) return kNoKey;
    const std::int32_t entry = entries[unit / halves], partial = entry & Lists::kPartial;
    return ((entry ^ partial) * params.kv_block + unit % halves * 64) | partial;
  };
  std::int32_t keys[T::kUnits], before[T::kUnits];
  for (int unit = 0; unit < units; unit += T::kUnits) {
#pragma unroll
    for (int i = 0; i < T::kUnits; ++i) keys[i] = key_of(unit + i);
    copy(&params.k, keys, true);
    if (unit > 0) copy(&params.v, before, false);
#pragma unroll
    for (int i = 0; i < T::kUnits; ++i) before[i] = keys[i];
  }
  copy(&params.v, before, false);
}

/// All tiles of a team. All lanes of the producer's warp call it. A tile is looked up while the consumers are
/// busy with the one before: its order, counts and entries are read one after the other.
template <class T>
__device__ __forceinline__ void produce(const ForwardParams& params, TeamStorage<T>& shared, int slot) {
  unsigned turn = 0, tile_turn = 0;
#pragma unroll 1
  for (bool starts = true;; starts = false) {
    const int tile = params.order.take(starts, slot);
    if (tile < 0) break;
    Work work(params, params.splits > 1 ? tile % params.tiles : tile, T::kQueries);
    if (params.splits > 1) work.take_part(tile / params.tiles, params.splits, params.kv_block / 64);
    if (ptx::elect_lane()) {
      copy_queries<T>(params, shared, work, tile_turn);
      if (work.units > 0) copy_keys<T>(params, shared, work, turn);
    }
    turn += 2 * ((work.units + T::kUnits - 1) / T::kUnits);
    ++tile_turn;
  }
  if (!ptx::elect_lane()) return;
  const StageOf<T::kQBuffers> buffer(tile_turn);
  ptx::mbarrier_wait(ptx::shared_address(&shared.q_empty[buffer.index]), buffer.parity ^ 1);
  shared.work[buffer.index].units = Work::kNoMore;
  ptx::mbarrier_arrive(ptx::shared_address(&shared.q_full[buffer.index]));
}

}  // namespace sparseloom::kernels::cuda::attention
