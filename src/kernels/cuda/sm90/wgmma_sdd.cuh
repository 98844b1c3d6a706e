// dW[block] = sum over tokens t of dY[t, rows of the block]^T X[t, columns of the block], at the stored
// blocks; fp32 sums
//
//             dY                          X                                    a thread block, one per
//             multiprocessor, item after
//   tokens    . . # # . . .               . # . . # . # . . #                  item: some blocks of one block
//   row
//     |       . . # # . . .               . # . . # . # . . #                  producers  four warps: TMA
//     copies of 64 tokens of v       . . # # . . .               . # . . # . # . . # dY's block row and of X
//     under each block
//                 N of wgmma, read        M: 64 gathered columns,              ring       as many stages as
//                 fit once for all blocks     a strip                              consumers  two warpgroups,
//                 every other strip each
//
// Both operands are transposed on their way into the tensor cores, which 16-bit types allow. A stage is
// handed on by two barriers. full: one arrival of each producer warp and the bytes of its copies. empty: one
// arrival of each consumer warp, behind its wgmma. What a thread block sums of an item is a part; its first
// stage comes with its record, and the ring goes on from part to part. What full rounds of the grid leave is
// cut by its tokens (wgmma_sdd_cut.h) and added up through the workspace (wgmma_sdd_parts.cuh): where,
// depends on the sizes, the row lengths and the number of multiprocessors alone, so every run gives the same
// bits.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/ptx/sm90/registers.cuh"
#include "kernels/cuda/sm90/wgmma_sdd_consume.cuh"
#include "kernels/cuda/sm90/wgmma_sdd_produce.cuh"

namespace sparseloom::kernels::cuda::wgmma_sdd {

template <class T>
__global__ void __launch_bounds__(T::kThreads, 1) wgmma_sdd_kernel(const __grid_constant__ Params params) {
  extern __shared__ __align__(1024) std::byte shared_bytes[];
  auto& shared = *reinterpret_cast<SharedStorage<T>*>(shared_bytes);
  if (threadIdx.x == 0) {
    ptx::prefetch_tensor_map(&params.dy);
    ptx::prefetch_tensor_map(&params.x);
    for (int stage = 0; stage < T::kMostStages; ++stage) {
      ptx::mbarrier_init(ptx::shared_address(&shared.full[stage]), T::kProducers);
      ptx::mbarrier_init(ptx::shared_address(&shared.empty[stage]), T::kConsumers * 4);
    }
    ptx::fence_mbarrier_init();
    ptx::fence_proxy_async();
  }
  __syncthreads();

  const int warpgroup = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);  // uniform, and known to be
  if (warpgroup == T::kConsumers) {
    ptx::release_registers_to<T::kProducerRegisters>();
    produce<T>(params, shared);
  } else {
    ptx::claim_registers_to<T::kConsumerRegisters>();
    consume<T>(params, shared, warpgroup);
  }
}

}  // namespace sparseloom::kernels::cuda::wgmma_sdd
