// The persistent, warp-specialised backward kernel: a team for each block of keys, which walks over the
// queries that meet it (FlashAttention-2, Dao 2023, algorithm 2, whose outer loop is over keys, too).
#pragma once

#include <cuda_runtime.h>

#include "kernels/block_attention/sm90/backward/consume.cuh"
#include "kernels/block_attention/sm90/backward/produce.cuh"

namespace sparseloom::kernels::cuda::attention {

/// Zeroes the warpgroup's K and V behind the sequence's end.
template <class T>
__device__ __forceinline__ void zero_keys(const BackwardParams& params, BackwardTeam<T>& shared,
                                          unsigned buffer, int group) {
  const KeyWork work(params, shared.tile[buffer], T::kKeys);
  const int kept = work.sequence.kv_tokens - work.first_key - group * 64;
  if (kept >= 64) return;
  zero_tokens<T::kHeadDim, T::kKeys, 128>(shared.k[buffer] + group * 64 * 128, kept, threadIdx.x % 128);
  zero_tokens<T::kHeadDim, T::kKeys, 128>(shared.v[buffer] + group * 64 * 128, kept, threadIdx.x % 128);
  ptx::fence_proxy_async();
  ptx::named_barrier_sync<128>(4 + static_cast<int>(threadIdx.x / 128));
}

/// dk and dv of the warpgroup's keys. K and V have been read for the last time, and serve as staging.
template <class T>
__device__ __forceinline__ void store_keys(const BackwardParams& params, BackwardTeam<T>& shared,
                                           unsigned buffer, int group, const float (&dk)[T::kSums],
                                           const float (&dv)[T::kSums]) {
  const KeyWork work(params, shared.tile[buffer], T::kKeys);
  const int first = work.first_key + group * 64, tokens = work.sequence.kv_tokens - first;
  const std::int64_t token = work.sequence.kv_first + first;
  const int barrier = 4 + static_cast<int>(threadIdx.x / 128);
  const float scale = params.common.scale;
  const auto at = [&](void* data, const std::int64_t(&strides)[3]) {
    return static_cast<std::uint16_t*>(data) + work.sequence.batch * strides[0] + work.kv_head * strides[1] +
           token * strides[2];
  };
  store_tokens<typename T::Element, T::kKeys>(at(params.dk, params.dk_strides), params.dk_strides[2], tokens,
                                              shared.k[buffer] + group * 64 * 128, dk, {scale, scale},
                                              barrier);
  store_tokens<typename T::Element, T::kKeys>(at(params.dv, params.dv_strides), params.dv_strides[2], tokens,
                                              shared.v[buffer] + group * 64 * 128, dv, {1.f, 1.f}, barrier);
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
      // Every lane arrives: see forward_kernel.
      Pipeline::init(team.kv_full, team.kv_empty, 1, T::kGroups * 128);
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
  BackwardTeam<T>& shared = storage.teams[team];
  unsigned turn = 0;
#pragma unroll 1
  for (unsigned tile_turn = 0;; ++tile_turn) {
    const StageOf<T::kKvBuffers> buffer(tile_turn);
    ptx::mbarrier_wait(ptx::shared_address(&shared.kv_full[buffer.index]), buffer.parity);
    if (shared.tile[buffer.index] < 0) return;
    if (params.common.q_starts != nullptr) zero_keys<T>(params, shared, buffer.index, group);
    float dk[T::kSums], dv[T::kSums];
#pragma unroll
    for (float& sum : dk) sum = 0;
#pragma unroll
    for (float& sum : dv) sum = 0;
    add_units<T>(params, shared, buffer.index, team, group, turn, dk, dv);
    store_keys<T>(params, shared, buffer.index, group, dk, dv);
    ptx::fence_proxy_async();
    ptx::mbarrier_arrive(ptx::shared_address(&shared.kv_empty[buffer.index]));  // may overwrite dk and dv
  }
}

}  // namespace sparseloom::kernels::cuda::attention
