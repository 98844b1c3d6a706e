// The persistent, warp-specialised forward kernel: the producer of a team copies the blocks of keys and
// values that the list of a block of queries names, and its consumers multiply them, with the softmax's
// running maximum and sum in registers (FlashAttention-3, Shah et al. 2024).
#pragma once

#include <cuda_runtime.h>

#include "kernels/block_attention/sm90/forward/consume.cuh"
#include "kernels/block_attention/sm90/forward/merge.cuh"
#include "kernels/block_attention/sm90/forward/params.cuh"
#include "kernels/block_attention/sm90/forward/produce.cuh"
#include "kernels/block_attention/sm90/forward/store.cuh"

namespace sparseloom::kernels::cuda::attention {

template <class T>
__global__ void __launch_bounds__(T::kThreads, 1)
    forward_kernel(const __grid_constant__ ForwardParams params) {
  extern __shared__ __align__(1024) std::byte shared_bytes[];
  auto& storage = *reinterpret_cast<ForwardStorage<T>*>(shared_bytes);
  if (threadIdx.x == 0) {
    ptx::prefetch_tensor_map(&params.q);
    ptx::prefetch_tensor_map(&params.k);
    ptx::prefetch_tensor_map(&params.v);
    for (TeamStorage<T>& team : storage.teams) {
      // Every lane reads the tile and its queries' outputs, so every lane arrives: racecheck follows no
      // barrier of a warp to another lane's arrival. Of a stage one lane reads the first keys, and arrives:
      // all of them took 2 to 4 % longer.
      Pipeline::init(team.q_full, team.q_empty, 1, T::kGroups * 128);
      Pipeline::init(team.full, team.empty, 1, T::kGroups * 4);
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
  TeamStorage<T>& shared = storage.teams[team];
  if (T::kGroups == 2 && group == 1) ptx::named_barrier_arrive<256>(1);  // the other's first turn
  unsigned turn = 0;
#pragma unroll 1
  for (unsigned tile_turn = 0;; ++tile_turn) {
    const StageOf<T::kQBuffers> buffer(tile_turn);
    ptx::mbarrier_wait(ptx::shared_address(&shared.q_full[buffer.index]), buffer.parity);
    const Work work = shared.work[buffer.index];
    if (work.units == Work::kNoMore) return;
    const Rows rows = rows_of(params, work, group);
    if (work.units == 0 && params.splits == 1) {
      store_nothing<T>(rows);
    } else {
      std::byte* const q = shared.q[buffer.index] + group * 64 * 128;
      float out[T::kSumsO];
#pragma unroll
      for (float& sum : out) sum = 0;
      Running running{{-INFINITY, -INFINITY}, {0, 0}};
      if (work.units > 0)
        consume<T>(params, shared, work, team, group, ptx::shared_address(q), turn, out, running);
      if (params.splits > 1)
        store_part<T>(params, work, group, out, running);
      else
        store<T>(rows, q, out, running, params.common.scale);
      ptx::fence_proxy_async();
    }
    // The next queries may overwrite the outputs, and the next tile this one.
    ptx::mbarrier_arrive(ptx::shared_address(&shared.q_empty[buffer.index]));
  }
}

}  // namespace sparseloom::kernels::cuda::attention
