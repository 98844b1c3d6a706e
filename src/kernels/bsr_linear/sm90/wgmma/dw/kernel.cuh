// The kernel for dW[block] = sum over tokens t of dY[t, rows of the block]^T X[t, columns of the block], at
// the stored blocks, with fp32 sums.
//
//             dY                           X
//   tokens    . . # # . . .                . # . . # . # . . #
//     |       . . # # . . .                . # . . # . # . . #
//     v       . . # # . . .                . # . . # . # . . #
//             N of wgmma: the rows of      M of wgmma: 64 gathered columns,
//             a block row, read once       called a strip
//             for all blocks
//
// The kernel is persistent: one thread block per multiprocessor takes work item after work item. An item is
// some blocks of one block row.
//
//   producers   Four warps issue TMA for 64 tokens of dY's block row and of X under each block.
//   ring        It has as many stages as fit.
//   consumers   Two warpgroups multiply every other strip each.
//
// Both operands are transposed on their way into the tensor cores, which wgmma allows for 16-bit types.
// Stages are handed over by the pipeline in kernels/shared/pipeline: all producer warps fill each, and each
// consumer warp releases it after its wgmma. A segment is the range of an item's tokens that one thread block
// sums: a `Record` beside the segment's first stage describes it, and the ring continues from segment to
// segment. The items of the last, partial wave are cut along the tokens, as in split-K (cut.h), and their
// partial sums are exchanged through the workspace (parts.cuh). The cuts depend only on the sizes, the row
// lengths and the number of multiprocessors, so every run gives the same bits.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/bsr_linear/sm90/wgmma/dw/consume.cuh"
#include "kernels/bsr_linear/sm90/wgmma/dw/produce.cuh"
#include "kernels/shared/ptx/sm90/registers.cuh"

namespace sparseloom::kernels::cuda::wgmma::dw {

template <class T>
__global__ void __launch_bounds__(T::kThreads, 1) wgmma_dw_kernel(const __grid_constant__ Params params) {
  extern __shared__ __align__(1024) std::byte shared_bytes[];
  auto& shared = *reinterpret_cast<SharedStorage<T>*>(shared_bytes);
  if (threadIdx.x == 0) {
    ptx::prefetch_tensor_map(&params.dy);
    ptx::prefetch_tensor_map(&params.x);
    Pipeline::init(shared.full, shared.empty, T::kProducers, T::kConsumers * 4);
    ptx::fence_mbarrier_init();
    ptx::fence_proxy_async();
  }
  __syncthreads();

  const int warpgroup =
      __shfl_sync(0xffffffff, threadIdx.x / 128, 0);  // tells the compiler that it is uniform
  if (warpgroup == T::kConsumers) {
    ptx::release_registers_to<T::kProducerRegisters>();
    produce<T>(params, shared);
  } else {
    ptx::claim_registers_to<T::kConsumerRegisters>();
    consume<T>(params, shared, warpgroup);
  }
}

}  // namespace sparseloom::kernels::cuda::wgmma::dw
