// forward: out [m, rows] = act(x [m, cols] W^T + bias)    dx: out [m, cols] = dy [m, rows] W    W
// block-sparse, fp32 sums
//
// A thread block (one per multiprocessor, tile after tile): kTokens tokens x kOutputs outputs, those of
// kLines block lines.
//
//   x             . # . . # # .     slabs, read once for all lines
//                   |     | |
//   values line 0   #     .  #      parts: what each line stores there (a record says which are present)
//          line 1   .     #  #
//
//   producers     unite the lines' lists, start TMA copies: x's slab and the parts present, straight from
//   values ring          kStages x (slabs of x, parts, record of this stage and of the next) consumers two
//   warpgroups, half of the tokens or of the outputs each: wgmma for the present parts finishers     where
//   the sums are wanted beside their activation: both, while the next tile is multiplied
//
// A stage is handed on by two barriers. full: an arrival of its producer and the bytes of the copies. empty:
// one arrival of each consumer warp, behind its wgmma. Both sides pass the same sequence of records, one or
// more per tile, the last of a tile marked, so that neither needs to know the other's place; a stage is
// awaited only in the order in which it was filled, so nothing can block for good while lists are finite.
// Fixed order of summation: ascending along the reduction, for every tile shape and grid.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/ptx/griddepcontrol.cuh"
#include "kernels/cuda/ptx/sm90/registers.cuh"
#include "kernels/cuda/sm90/wgmma_dds_consume.cuh"
#include "kernels/cuda/sm90/wgmma_dds_produce.cuh"

namespace sparseloom::kernels::cuda::wgmma_dds {

template <class T>
__global__ void __launch_bounds__(T::kThreads, T::kBlocksPerSm)
    wgmma_dds_kernel(const __grid_constant__ Params params) {
  extern __shared__ __align__(1024) std::byte shared_bytes[];
  auto& shared = *reinterpret_cast<SharedStorage<T>*>(shared_bytes);
  if (threadIdx.x == 0) {
    ptx::prefetch_tensor_map(&params.x);
    ptx::prefetch_tensor_map(&params.values);
    ptx::prefetch_tensor_map(&params.out);
    for (int stage = 0; stage < T::kStages; ++stage) {
      ptx::mbarrier_init(ptx::shared_address(&shared.full[stage]), 1);
      ptx::mbarrier_init(ptx::shared_address(&shared.empty[stage]), T::kConsumers * 4);
    }
    if constexpr (T::kAddsResidual) {
      for (ResidualBarrier& residual : shared.residual) {
        ptx::mbarrier_init(ptx::shared_address(&residual.barrier), 1);
        residual.phase = 0;
      }
    }
    if constexpr (T::kFinishes) {
      for (int unit = 0; unit < T::kUnits; ++unit) {
        ptx::mbarrier_init(ptx::shared_address(&shared.handed[unit]), HandOver<T>::kWriters);
        ptx::mbarrier_init(ptx::shared_address(&shared.taken[unit]), 1);
      }
    }
    ptx::fence_mbarrier_init();
    ptx::fence_proxy_async();
  }
  __syncthreads();
  ptx::wait_for_earlier_kernels();
  ptx::let_next_kernel_begin();

  const int warpgroup = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);  // uniform, and known to be
  if (warpgroup >= T::kConsumers) {
    if constexpr (T::kProducerRegisters > 0) ptx::release_registers_to<T::kProducerRegisters>();
    const int helper = __shfl_sync(0xffffffff, threadIdx.x / 32 - T::kConsumers * 4, 0);
    if (helper < T::kProducers) {
      produce<T>(params, shared, helper);
    } else if constexpr (T::kFinishes) {
      finish<T>(params, shared, helper - T::kProducers);
    }
  } else {
    if constexpr (T::kConsumerRegisters > 0) ptx::claim_registers_to<T::kConsumerRegisters>();
    consume<T>(params, shared, warpgroup);
  }
}

}  // namespace sparseloom::kernels::cuda::wgmma_dds
