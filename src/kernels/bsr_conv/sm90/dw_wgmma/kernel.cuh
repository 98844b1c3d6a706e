// The Hopper kernel of a convolution's dW[block][tap] = sum over pixels p of dY[p, rows of the block]^T
// x[under (p, tap), columns of the block], at the stored blocks. It is the kernel of a product
// (bsr_linear/sm90/wgmma/dw/kernel.cuh) whose blocks are the stored ones under each tap, with its own
// producers. Taps of a block are consecutive, so most items are the taps of one or two blocks: they read dY
// once, and mostly the same lines of X from L2.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/bsr_conv/sm90/dw_wgmma/produce.cuh"
#include "kernels/bsr_linear/sm90/wgmma/dw/consume.cuh"
#include "kernels/shared/ptx/sm90/registers.cuh"

namespace sparseloom::kernels::cuda::wgmma_conv_dw {

template <class T>
__global__ void __launch_bounds__(T::kThreads, 1)
    wgmma_conv_dw_kernel(const __grid_constant__ Params params) {
  extern __shared__ __align__(1024) std::byte shared_bytes[];
  auto& shared = *reinterpret_cast<wgmma::dw::SharedStorage<T>*>(shared_bytes);
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
    wgmma::dw::consume<T>(params, shared, warpgroup);
  }
}

}  // namespace sparseloom::kernels::cuda::wgmma_conv_dw
