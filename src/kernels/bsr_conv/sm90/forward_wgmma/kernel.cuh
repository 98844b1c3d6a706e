// The Hopper kernel of a convolution: the tiles, ring, consumers and stores of a product's
// (bsr_linear/sm90/wgmma/forward/kernel.cuh), with its own producers. A tile's tokens are walked pixels, of
// out in forward and of dx in dx; a stage has a K tile of channels under one tap.
//
//   forward  out [pixels, rows] = act(sum over taps of x under the tap W[tap]^T + bias)
//   dx       dx  [pixels, cols] = sum over taps of dy under the tap W[tap], for stride 1
//
// The order of summation is fixed: K tiles of channels ascend, and the taps of each.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/bsr_conv/sm90/forward_wgmma/produce.cuh"
#include "kernels/bsr_linear/sm90/wgmma/forward/consume.cuh"
#include "kernels/shared/ptx/griddepcontrol.cuh"
#include "kernels/shared/ptx/sm90/registers.cuh"

namespace sparseloom::kernels::cuda::wgmma_conv {

template <class T>
__global__ void __launch_bounds__(T::kThreads, T::kBlocksPerSm)
    wgmma_conv_kernel(const __grid_constant__ Params params) {
  static_assert(!T::kAddsResidual && !T::kHasEpilogueWarps,
                "this kernel does not initialise the barriers of residuals and epilogue warps");
  extern __shared__ __align__(1024) std::byte shared_bytes[];
  auto& shared = *reinterpret_cast<wgmma::forward::SharedStorage<T>*>(shared_bytes);
  if (threadIdx.x == 0) {
    ptx::prefetch_tensor_map(&params.x);
    ptx::prefetch_tensor_map(&params.values);
    ptx::prefetch_tensor_map(&params.out);
    Pipeline::init(shared.full, shared.empty, 1, T::kConsumers * 4);
    ptx::fence_mbarrier_init();
    ptx::fence_proxy_async();
  }
  __syncthreads();
  ptx::wait_for_earlier_kernels();
  ptx::let_next_kernel_begin();

  const int warpgroup = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);  // tells ptxas that it is uniform
  if (warpgroup >= T::kConsumers) {
    if constexpr (T::kProducerRegisters > 0) ptx::release_registers_to<T::kProducerRegisters>();
    const int producer = __shfl_sync(0xffffffff, threadIdx.x / 32 - T::kConsumers * 4, 0);
    if (producer < T::kProducers) produce<T>(params, shared, producer);
  } else {
    if constexpr (T::kConsumerRegisters > 0) ptx::claim_registers_to<T::kConsumerRegisters>();
    wgmma::forward::consume<T>(params, shared, warpgroup);
  }
}

}  // namespace sparseloom::kernels::cuda::wgmma_conv
