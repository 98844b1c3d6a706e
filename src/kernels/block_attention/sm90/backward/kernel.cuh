// The persistent, warp-specialised backward kernel: a team for each block of keys, which walks over the queries
// that meet it (FlashAttention-2, Dao 2023, algorithm 2, whose outer loop is over keys, too).
#pragma once

#include <cuda_runtime.h>

#include "kernels/block_attention/sm90/backward/consume.cuh"
#include "kernels/block_attention/sm90/backward/produce.cuh"

namespace sparseloom::kernels::cuda::attention {

/// dk and dv of the warpgroup's keys. K and V have been read for the last time, and serve as staging.
template <class T>
__device__ __forceinline__ void store_keys(const BackwardParams& params, BackwardTeam<T>& shared,
                                           const KeyWork& work, int group, const float (&dk)[T::kSums],
                                           const float (&dv)[T::kSums]) {
  const int first = work.first_key + group * 64, tokens = work.sequence.kv_tokens - first;
  const std::int64_t token = work.sequence.kv_first + first;
  const int barrier = 4 + static_cast<int>(threadIdx.x / 128);
  const float scale = params.common.scale;
  const auto at = [&](void* data, const std::int64_t (&strides)[3]) {
    return static_cast<std::uint16_t*>(data) + work.sequence.batch * strides[0] + work.kv_head * strides[1] +
           token * strides[2];
  };
  store_tokens<typename T::Element, T::kKeys>(at(params.dk, params.dk_strides), params.dk_strides[2], tokens,
                                              shared.k + group * 64 * 128, dk, {scale, scale}, barrier);
  store_tokens<typename T::Element, T::kKeys>(at(params.dv, params.dv_strides), params.dv_strides[2], tokens,
                                              shared.v + group * 64 * 128, dv, {1.f, 1.f}, barrier);
}

template <class T>
__global__ void __launch_bounds__(T::kThreads, 1)
    backward_kernel(const __grid_constant__ BackwardParams params) {
  extern __shared__ __align__(1024) std::byte shared_bytes[];
  auto& storage = *reinterpret_cast<BackwardStorage<T>*>(shared_bytes);
  if (threadIdx.x == 0) {
    ptx::prefetch_tensor_map(&params.q);
    ptx::prefetch_tensor_map(&params.k);
    ptx::prefetch_tensor_map(&params.v);
    ptx::prefetch_tensor_map(&params.dout);
    for (BackwardTeam<T>& team : storage.teams) {
      ptx::mbarrier_init(ptx::shared_address(&team.kv_full), 1);
      ptx::mbarrier_init(ptx::shared_address(&team.kv_empty), T::kGroups * 4);
      Pipeline::init(team.full, team.empty, 1, T::kGroups * 4);
    }
    ptx::fence_mbarrier_init();
  }
  __syncthreads();

  const int warpgroup = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);  // tells ptxas that it is uniform
  const int group_heads = params.common.heads_per_kv;
  unsigned turn = 0, tile_turn = 0;
  if (warpgroup == T::kConsumers) {
    ptx::release_registers_to<T::kProducerRegisters>();
    const int team = __shfl_sync(0xffffffff, threadIdx.x / 32 % 4, 0);
    if (team >= T::kTeams) return;
    BackwardTeam<T>& shared = storage.teams[team];
#pragma unroll 1
    for (int tile = blockIdx.x + team * gridDim.x; tile < params.tiles; tile += T::kTeams * gridDim.x) {
      const KeyWork work(params, tile, T::kKeys);
      if (work.first_key >= work.sequence.kv_tokens) continue;
      if (ptx::elect_lane()) copy_keys<T>(params, shared, work, tile_turn);
      ++tile_turn;
#pragma unroll 1
      for (int head = work.kv_head * group_heads; head < (work.kv_head + 1) * group_heads; ++head) {
        const Units units(params, work, head);
        if (ptx::elect_lane()) copy_units<T>(params, shared, work, units, head, turn);
        turn += units.units;
      }
    }
  } else {
    ptx::claim_registers_to<T::kConsumerRegisters>();
    const int team = warpgroup / T::kGroups, group = warpgroup % T::kGroups;
    BackwardTeam<T>& shared = storage.teams[team];
#pragma unroll 1
    for (int tile = blockIdx.x + team * gridDim.x; tile < params.tiles; tile += T::kTeams * gridDim.x) {
      float dk[T::kSums], dv[T::kSums];
      int first_head;
      {
        const KeyWork work(params, tile, T::kKeys);
        if (work.first_key >= work.sequence.kv_tokens) continue;
        first_head = work.kv_head * group_heads;
        ptx::mbarrier_wait(ptx::shared_address(&shared.kv_full), tile_turn++ & 1);
        if (const int kept = work.sequence.kv_tokens - work.first_key - group * 64;
            params.common.q_starts != nullptr && kept < 64) {
          zero_tokens<T::kHeadDim, T::kKeys, 128>(shared.k + group * 64 * 128, kept, threadIdx.x % 128);
          zero_tokens<T::kHeadDim, T::kKeys, 128>(shared.v + group * 64 * 128, kept, threadIdx.x % 128);
          ptx::fence_proxy_async();
          ptx::named_barrier_sync<128>(4 + warpgroup);
        }
      }
#pragma unroll
      for (float& sum : dk) sum = 0;
#pragma unroll
      for (float& sum : dv) sum = 0;
#pragma unroll 1
      for (int i = 0; i < group_heads; ++i) {
        int again = tile;
        ptx::opaque(again);
        const int units = Units(params, KeyWork(params, again, T::kKeys), first_head + i).units;
        add_head<T>(params, shared, tile, units, team, group, turn, dk, dv);
      }
      int again = tile;
      ptx::opaque(again);
      store_keys<T>(params, shared, KeyWork(params, again, T::kKeys), group, dk, dv);
      ptx::fence_proxy_async();
      __syncwarp();  // the next K and V may overwrite dk and dv
      if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(ptx::shared_address(&shared.kv_empty));
    }
  }
}

}  // namespace sparseloom::kernels::cuda::attention
