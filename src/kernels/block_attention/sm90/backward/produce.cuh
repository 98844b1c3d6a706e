// The producer of a team: K and V of the tile, then Q, dO and the stats of each unit.
#pragma once

#include "kernels/block_attention/cuda/key_work.cuh"
#include "kernels/block_attention/sm90/backward/params.cuh"
#include "kernels/block_attention/sm90/operands/copy_tokens.cuh"
#include "kernels/shared/pipeline/pipeline.cuh"
#include "kernels/shared/ptx/sm90/bulk.cuh"

namespace sparseloom::kernels::cuda::attention {

/// Tells the consumers the tile, and copies its K and V.
template <class T>
__device__ __forceinline__ void copy_keys(const BackwardParams& params, BackwardTeam<T>& shared,
                                          const KeyWork& work, int tile, int units, unsigned tile_turn) {
  const StageOf<T::kKvBuffers> buffer(tile_turn);
  const std::uint32_t full = ptx::shared_address(&shared.kv_full[buffer.index]);
  ptx::mbarrier_wait(ptx::shared_address(&shared.kv_empty[buffer.index]), buffer.parity ^ 1);
  shared.tile[buffer.index] = tile;
  shared.units[buffer.index] = units;
  ptx::mbarrier_arrive_expect_tx(full, 2 * T::kKvBytes);
#pragma unroll
  for (int group = 0; group < T::kGroups; ++group) {
    const int token = work.sequence.kv_first + work.first_key + group * 64;
    copy_tokens<T::kHeadDim, T::kKeys>(ptx::shared_address(shared.k[buffer.index]) + group * 64 * 128,
                                       &params.k, token, work.kv_head, work.sequence.batch, full);
    copy_tokens<T::kHeadDim, T::kKeys>(ptx::shared_address(shared.v[buffer.index]) + group * 64 * 128,
                                       &params.v, token, work.kv_head, work.sequence.batch, full);
  }
}

template <class T>
__device__ __forceinline__ void copy_units(const BackwardParams& params, BackwardTeam<T>& shared,
                                           const KeyWork& work, const Units& units, int head, unsigned turn) {
  const Pipeline pipeline(shared.full, shared.empty);
  const bool ragged = params.common.q_starts != nullptr;
  const int place0 = first_place(work.sequence, work.batch, ragged) +
                     (ragged ? head : work.batch * params.common.heads + head) * params.places;
#pragma unroll 1
  for (int unit = 0; unit < units.units; ++unit, ++turn) {
    const StageOf<T::kStages> stage(turn);
    const std::int32_t query = units.query(params, unit), first = query & ~Lists::kPartial;
    // The second half of a last block of 128 may lie behind the sequence: its stats are another's.
    const bool exists = first < work.sequence.q_tokens;
    const int place = place0 + first / 64;
    pipeline.acquire(stage.index, stage.parity ^ 1);
    shared.query[stage.index] = query;
    shared.masked[stage.index] = is_masked(params.common, work, T::kKeys, query);
    shared.place[stage.index] = exists ? place : -1;
    const std::uint32_t full = pipeline.full(stage.index);
    Pipeline::expect(full, 2 * T::kUnitBytes + (exists ? kStatsBytes : 0));
    const int token = work.sequence.q_first + first;
    copy_tokens<T::kHeadDim, 64>(ptx::shared_address(shared.q[stage.index]), &params.q, token, head,
                                 work.sequence.batch, full);
    if (exists)
      ptx::bulk_load(ptx::shared_address(shared.stats[stage.index]), params.stats + std::int64_t{place} * 128,
                     kStatsBytes, full);
    copy_tokens<T::kHeadDim, 64>(ptx::shared_address(shared.dout[stage.index]), &params.dout, token, head,
                                 work.sequence.batch, full);
  }
}

/// All tiles of a team. All lanes of the producer's warp call it.
template <class T>
__device__ __forceinline__ void produce(const BackwardParams& params, BackwardTeam<T>& shared, int slot) {
  const int group_heads = params.common.heads_per_kv;
  unsigned turn = 0, tile_turn = 0;
#pragma unroll 1
  for (bool starts = true;; starts = false) {
    const int tile = params.order.take(starts, slot);
    if (tile < 0) break;
    const KeyWork work(params, tile, T::kKeys);
    if (work.first_key >= work.sequence.kv_tokens) continue;
    int units = 0;
#pragma unroll 1
    for (int i = 0; i < group_heads; ++i) units += Units(params, work, work.kv_head * group_heads + i).units;
    if (ptx::elect_lane()) copy_keys<T>(params, shared, work, tile, units, tile_turn);
    ++tile_turn;
#pragma unroll 1
    for (int i = 0; i < group_heads; ++i) {
      const int head = work.kv_head * group_heads + i;
      const Units of_head(params, work, head);
      if (ptx::elect_lane()) copy_units<T>(params, shared, work, of_head, head, turn);
      turn += of_head.units;
    }
  }
  if (ptx::elect_lane()) {
    const StageOf<T::kKvBuffers> buffer(tile_turn);
    ptx::mbarrier_wait(ptx::shared_address(&shared.kv_empty[buffer.index]), buffer.parity ^ 1);
    shared.tile[buffer.index] = -1;
    ptx::mbarrier_arrive(ptx::shared_address(&shared.kv_full[buffer.index]));
  }
}

}  // namespace sparseloom::kernels::cuda::attention
