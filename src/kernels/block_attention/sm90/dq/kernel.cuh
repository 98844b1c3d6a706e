// The persistent, warp-specialised kernel of dq: scale times the sum over kept keys of dS K, in the order of
// the lists, so that every run gives the same bits. backward_kernel computes dk and dv.
#pragma once

#include <cuda_runtime.h>

#include "kernels/block_attention/cuda/softmax.cuh"
#include "kernels/block_attention/cuda/work.cuh"
#include "kernels/block_attention/sm90/dq/params.cuh"
#include "kernels/block_attention/sm90/operands/copy_tokens.cuh"
#include "kernels/block_attention/sm90/operands/element.cuh"
#include "kernels/block_attention/sm90/operands/registers.cuh"
#include "kernels/shared/pipeline/pipeline.cuh"
#include "kernels/shared/ptx/address.cuh"
#include "kernels/shared/ptx/sm90/named_barrier.cuh"

namespace sparseloom::kernels::cuda::attention {

/// Passes the tile to the consumers, with its queries and their gradients if it has keys.
template <class T>
__device__ __forceinline__ void copy_queries(const DqParams& params, DqTeam<T>& shared, const Work& work,
                                             unsigned tile_turn) {
  const std::uint32_t q_full = ptx::shared_address(&shared.q_full);
  ptx::mbarrier_wait(ptx::shared_address(&shared.q_empty), (tile_turn ^ 1) & 1);
  shared.work = work;
  Pipeline::expect(q_full, work.units > 0 ? 2 * T::kQBytes : 0);
  if (work.units <= 0) return;
#pragma unroll
  for (int group = 0; group < T::kGroups; ++group) {
    const int token = work.sequence.q_first + work.first_query + group * 64;
    copy_tokens<T::kHeadDim, T::kQueries>(ptx::shared_address(shared.q) + group * 64 * 128, &params.q, token,
                                          work.head, work.sequence.batch, q_full);
    copy_tokens<T::kHeadDim, T::kQueries>(ptx::shared_address(shared.dout) + group * 64 * 128, &params.dout,
                                          token, work.head, work.sequence.batch, q_full);
  }
}

/// Copies the keys and values of a tile, units `from` to `to`.
template <class T>
__device__ __forceinline__ void copy_keys(const DqParams& params, DqTeam<T>& shared, const Work& work,
                                          unsigned turn, int from, int to) {
  const Pipeline pipeline(shared.full, shared.empty);
  const auto& [sequence, entries, units, first_query, head, batch, part] = work;
  const int kv_head = head / params.common.heads_per_kv, halves = params.kv_block / 64;
#pragma unroll 1
  for (int unit = from; unit < to; ++unit) {
    const StageOf<T::kStages> stage(turn + unit);
    const std::int32_t entry = entries[unit / halves], partial = entry & Lists::kPartial;
    const int key = (entry ^ partial) * params.kv_block + unit % halves * 64;
    pipeline.acquire(stage.index, stage.parity ^ 1);
    shared.first_key[stage.index] = key | partial;
    const std::uint32_t full = pipeline.full(stage.index);
    Pipeline::expect(full, 2 * T::kUnitBytes);
    copy_tokens<T::kHeadDim, 64>(ptx::shared_address(shared.k[stage.index]), &params.k,
                                 sequence.kv_first + key, kv_head, sequence.batch, full);
    copy_tokens<T::kHeadDim, 64>(ptx::shared_address(shared.v[stage.index]), &params.v,
                                 sequence.kv_first + key, kv_head, sequence.batch, full);
  }
}

/// All tiles of a team. All lanes of the producer's warp call it. There is no room for the queries of two
/// tiles, so as many keys as the ring holds are on their way before the queries are.
template <class T>
__device__ __forceinline__ void produce(const DqParams& params, DqTeam<T>& shared, int slot) {
  unsigned turn = 0, tile_turn = 0;
#pragma unroll 1
  for (bool starts = true;; starts = false) {
    const int tile = params.order.take(starts, slot);
    if (tile < 0) break;
    const Work work(params, tile, T::kQueries);
    if (ptx::elect_lane()) {
      const int first = min(work.units, T::kStages);
      copy_keys<T>(params, shared, work, turn, 0, first);
      copy_queries<T>(params, shared, work, tile_turn);
      copy_keys<T>(params, shared, work, turn, first, work.units);
    }
    turn += work.units;
    ++tile_turn;
  }
  if (!ptx::elect_lane()) return;
  ptx::mbarrier_wait(ptx::shared_address(&shared.q_empty), (tile_turn ^ 1) & 1);
  shared.work.units = Work::kNoMore;
  ptx::mbarrier_arrive(ptx::shared_address(&shared.q_full));
}

/// sums[64 queries][64 keys] = a b^T over head_dim, queued as one group. `a`: rows of a tile of kQueries.
template <class T>
__device__ __forceinline__ void multiply_by_unit(float (&sums)[32], std::uint32_t a, std::uint32_t b) {
  ptx::wgmma_fence();
#pragma unroll
  for (int d = 0; d < T::kHeadDim / 16; ++d) {
    const std::uint32_t within = d % 4 * 32;
    T::Element::template mma<false, false>(
        sums, kKMajorTile + ptx::wgmma_address(a + d / 4 * T::kQueries * 128 + within),
        kKMajorTile + ptx::wgmma_address(b + d / 4 * 64 * 128 + within), d > 0);
  }
  ptx::wgmma_commit();
}

template <class T>
__device__ __forceinline__ void consume(const DqParams& params, DqTeam<T>& shared, const Work& work, int team,
                                        int group, unsigned& turn, float (&dq)[T::kSums]) {
  const Pipeline pipeline(shared.full, shared.empty);
  const auto& [sequence, entries, units, first_query, head, batch, part] = work;
  const Common& common = params.common;
  const bool ragged = common.q_starts != nullptr;
  const Mask mask(common, sequence, batch, first_query + group * 64);
  const float scale_log2 = common.scale * kLog2E;
  const int lane = threadIdx.x % 32, thread = threadIdx.x % 128, row = thread / 32 * 16 + lane / 4;
  float lse[2], delta[2];  // of the thread's rows
  {
    const int place = (ragged ? head : batch * common.heads + head) * params.places +
                      first_place(sequence, batch, ragged) + first_query / 64 + group;
    const bool exists = first_query + group * 64 < sequence.q_tokens;
    const float* const stats = params.stats + std::int64_t{place} * 128;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      lse[i] = exists ? stats[row + 8 * i] : INFINITY;
      delta[i] = exists ? stats[64 + row + 8 * i] : 0;
    }
  }
  const std::uint32_t q = ptx::shared_address(shared.q) + group * 64 * 128;
  const std::uint32_t dout = ptx::shared_address(shared.dout) + group * 64 * 128;
#pragma unroll 1
  for (int unit = 0; unit < units; ++unit, ++turn) {
    const StageOf<T::kStages> stage(turn);
    pipeline.wait(stage.index, stage.parity);
    const std::int32_t key = shared.first_key[stage.index];
    if (const int kept = sequence.kv_tokens - (key & ~Lists::kPartial); ragged && kept < 64) {
      zero_tokens<T::kHeadDim, 64, T::kGroups * 128>(shared.k[stage.index], kept, group * 128 + thread);
      zero_tokens<T::kHeadDim, 64, T::kGroups * 128>(shared.v[stage.index], kept, group * 128 + thread);
      ptx::fence_proxy_async();
      ptx::named_barrier_sync<T::kGroups * 128>(1 + team);
    }
    const std::uint32_t k = ptx::shared_address(shared.k[stage.index]);
    float p[32], dp[32];
    std::uint32_t operand[4][4];
    multiply_by_unit<T>(p, q, k);
    multiply_by_unit<T>(dp, dout, ptx::shared_address(shared.v[stage.index]));
    ptx::wgmma_wait<1>();
    ptx::pin(p);
    mask.apply(p, key, common, sequence, batch);
#pragma unroll
    for (int i = 0; i < 32; ++i) p[i] = ptx::ex2_approx(p[i] * scale_log2 - lse[i / 2 % 2]);
    ptx::wgmma_wait<0>();
    ptx::pin(dp);
#pragma unroll
    for (int i = 0; i < 32; ++i) dp[i] = p[i] * (dp[i] - delta[i / 2 % 2]);
    to_operand<typename T::Element>(operand, dp);
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < 4; ++i)
      T::Element::mma_rs(dq, operand[i], kMnMajorTile<64> + ptx::wgmma_address(k + i * 2048));
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::pin(dq);
    ptx::keep(operand);
    pipeline.release(stage.index);
  }
}

template <class T>
__global__ void __launch_bounds__(T::kThreads, 1) dq_kernel(const __grid_constant__ DqParams params) {
  extern __shared__ __align__(1024) std::byte shared_bytes[];
  auto& storage = *reinterpret_cast<DqStorage<T>*>(shared_bytes);
  if (threadIdx.x == 0) {
    ptx::prefetch_tensor_map(&params.q);
    ptx::prefetch_tensor_map(&params.k);
    ptx::prefetch_tensor_map(&params.v);
    ptx::prefetch_tensor_map(&params.dout);
    for (DqTeam<T>& team : storage.teams) {
      ptx::mbarrier_init(ptx::shared_address(&team.q_full), 1);
      // Every lane arrives: see forward_kernel.
      ptx::mbarrier_init(ptx::shared_address(&team.q_empty), T::kGroups * 128);
      Pipeline::init(team.full, team.empty, 1, T::kGroups * 128);
    }
    ptx::fence_mbarrier_init();
  }
  __syncthreads();

  const int warpgroup = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);  // tells ptxas that it is uniform
  if (warpgroup == T::kConsumers) {
    ptx::release_registers_to<T::kProducerRegisters>();
    const int team = __shfl_sync(0xffffffff, threadIdx.x / 32 % 4, 0);
    if (team < T::kTeams) produce<T>(params, storage.teams[team], blockIdx.x + team * gridDim.x);
    return;
  }
  ptx::claim_registers_to<T::kConsumerRegisters>();
  const int team = warpgroup / T::kGroups, group = warpgroup % T::kGroups;
  DqTeam<T>& shared = storage.teams[team];
  const float scale = params.common.scale;
  unsigned turn = 0;
#pragma unroll 1
  for (unsigned tile_turn = 0;; ++tile_turn) {
    ptx::mbarrier_wait(ptx::shared_address(&shared.q_full), tile_turn & 1);
    const Work work = shared.work;
    if (work.units == Work::kNoMore) return;
    const int first = work.first_query + group * 64, tokens = work.sequence.q_tokens - first;
    auto* const to = static_cast<std::uint16_t*>(params.dq) + work.sequence.batch * params.dq_strides[0] +
                     work.head * params.dq_strides[1] +
                     std::int64_t{work.sequence.q_first + first} * params.dq_strides[2];
    if (work.units == 0) {
      store_zero_tokens<T::kHeadDim>(to, params.dq_strides[2], tokens);
    } else {
      float dq[T::kSums];
#pragma unroll
      for (float& sum : dq) sum = 0;
      consume<T>(params, shared, work, team, group, turn, dq);
      store_tokens<typename T::Element, T::kQueries>(
          to, params.dq_strides[2], tokens, shared.q + group * 64 * 128, dq, {scale, scale}, 4 + warpgroup);
      ptx::fence_proxy_async();
    }
    ptx::mbarrier_arrive(ptx::shared_address(&shared.q_empty));  // may overwrite dq and the tile
  }
}

}  // namespace sparseloom::kernels::cuda::attention
