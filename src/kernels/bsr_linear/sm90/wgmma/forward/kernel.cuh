// The Hopper kernel of forward and dx: a persistent, warp-specialised GEMM that reads and multiplies only the
// stored blocks of W.
//
//   forward:  out [m, rows] = act(x [m, cols] W^T + bias)
//   dx:       out [m, cols] = dy [m, rows] W               (the code calls dy "x", too)
//
// W is block-sparse (BSR); sums are fp32. Each CTA computes one tile of the output after another, and there
// is one CTA to an SM (two with narrow tiles). A tile is kTokens tokens x kOutputs outputs. Its outputs are
// those of kBlockRows block rows of W (or of half of one): block columns in dx, but the code says "block row"
// for both. The mainloop runs over K tiles of the reduction:
//
//                    K tiles of the reduction
//   x                .  #  .  .  #  #  .     A K tile of x is loaded once for all block rows of the tile, and
//                       |        |  |        only if one of them stores a block there.
//   W, block row 0      #        .  #        Parts: what each block row stores in the K tile. The descriptor
//      block row 1      .        #  #        of a stage says which parts are present.
//
// Warps have these roles (in brackets: the files of this folder):
//
//   producers        find the union of the block rows' index lists and issue TMA copies of x's K tile and of
//                    the parts that are present, straight from the stored values           [produce, union]
//   ring             kStages stages in shared memory. Each holds K tiles of x, parts, and two stage
//                    descriptors (`record`): this stage's and the next one's                         [tile]
//   consumers        two warpgroups. Each multiplies half of the tokens, or with swap-AB half of the outputs,
//                    by wgmma for the parts that are present; TMA stores the result
//                                                                               [consume, swap_ab, store]
//   epilogue warps   only where the sums are wanted beside their activation (training): they store both
//                    while the consumers multiply the next tile                            [epilogue_warps]
//
// Stages are handed over by the pipeline in kernels/shared/pipeline; a stage has one producer warp, and each
// consumer warp releases it after its wgmma. Both sides visit the same sequence of stages: one or more for
// each tile, whose last descriptor is marked, so neither side needs to know the other's position. The order
// of summation is fixed: ascending along the reduction, for every tile shape and grid.
//
// The other files say which tiles a CTA computes, in which order [walk], how operand types differ [element],
// how fp32 is multiplied as bf16x3 [bf16x3], and how the host chooses and launches an instance [launch].
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/bsr_linear/sm90/wgmma/forward/consume.cuh"
#include "kernels/bsr_linear/sm90/wgmma/forward/produce.cuh"
#include "kernels/shared/ptx/griddepcontrol.cuh"
#include "kernels/shared/ptx/sm90/registers.cuh"

namespace sparseloom::kernels::cuda::wgmma::forward {

template <class T>
__global__ void __launch_bounds__(T::kThreads, T::kBlocksPerSm)
    wgmma_forward_kernel(const __grid_constant__ Params params) {
  extern __shared__ __align__(1024) std::byte shared_bytes[];
  auto& shared = *reinterpret_cast<SharedStorage<T>*>(shared_bytes);
  // Prologue: one thread prefetches the tensor maps and initialises the mbarriers.
  if (threadIdx.x == 0) {
    ptx::prefetch_tensor_map(&params.x);
    ptx::prefetch_tensor_map(&params.values);
    ptx::prefetch_tensor_map(&params.out);
    Pipeline::init(shared.full, shared.empty, 1, T::kConsumers * 4);
    if constexpr (T::kAddsResidual) {
      for (ResidualBarrier& residual : shared.residual) {
        ptx::mbarrier_init(ptx::shared_address(&residual.barrier), 1);
        residual.phase = 0;
      }
    }
    if constexpr (T::kHasEpilogueWarps) {
      for (int unit = 0; unit < T::kUnits; ++unit) {
        ptx::mbarrier_init(ptx::shared_address(&shared.handed[unit]), EpilogueQueue<T>::kWriters);
        ptx::mbarrier_init(ptx::shared_address(&shared.taken[unit]), 1);
      }
    }
    ptx::fence_mbarrier_init();
    ptx::fence_proxy_async();
  }
  __syncthreads();
  // With programmatic dependent launch, all of the above overlaps the end of the kernel before.
  ptx::wait_for_earlier_kernels();
  ptx::let_next_kernel_begin();

  const int warpgroup = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);  // tells ptxas that it is uniform
  // Split into roles. Producer and epilogue warps release registers, and the consumers claim them.
  if (warpgroup >= T::kConsumers) {
    if constexpr (T::kProducerRegisters > 0) ptx::release_registers_to<T::kProducerRegisters>();
    const int helper = __shfl_sync(0xffffffff, threadIdx.x / 32 - T::kConsumers * 4, 0);
    if (helper < T::kProducers) {
      produce<T>(params, shared, helper);
    } else if constexpr (T::kHasEpilogueWarps) {
      run_epilogue_warp<T>(params, shared, helper - T::kProducers);
    }
  } else {
    if constexpr (T::kConsumerRegisters > 0) ptx::claim_registers_to<T::kConsumerRegisters>();
    consume<T>(params, shared, warpgroup);
  }
}

}  // namespace sparseloom::kernels::cuda::wgmma::forward
