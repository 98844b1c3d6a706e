// forward: out [m, rows] = act(x [m, cols] W^T + bias) + residual    dx: out [m, cols] = dy [m, rows] W    W
// in blocks of 16 x 16, fp32 sums
//
// A thread block (one per multiprocessor, tile after tile): 64 tokens x 512 outputs, those of 32 block lines.
//
//   producers     table of the lines' blocks; per slab of 64 along the reduction, TMA brings x's, cp.async
//   the blocks stored in it ring          stages x (x, blocks, a record for each consumer) consumers     16
//   warps of two lines: mma.sync for the blocks that these store
//
// Where some slab has more blocks than a stage has slots, each takes several stages, x in each. A stage is
// handed on by two barriers. full: the 32 lanes of its producer, whose copies have come, and the bytes of x.
// empty: one arrival of each consumer warp. Fixed order of summation: ascending along the reduction, whatever
// the grid and the ring.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/ptx/griddepcontrol.cuh"
#include "kernels/cuda/ptx/sm90/registers.cuh"
#include "kernels/cuda/sm90/mma_dds_consume.cuh"
#include "kernels/cuda/sm90/mma_dds_produce.cuh"

namespace sparseloom::kernels::cuda::mma_dds {

template <class T>
__global__ void __launch_bounds__(T::kThreads, 1) mma_dds_kernel(const __grid_constant__ Params params) {
  extern __shared__ __align__(1024) std::byte shared_bytes[];
  auto& front = *reinterpret_cast<SharedFront<T>*>(shared_bytes);
  std::byte* const ring = shared_bytes + kFrontBytes<T>;
  if (threadIdx.x == 0) {
    ptx::prefetch_tensor_map(&params.x);
    ptx::prefetch_tensor_map(&params.out);
    for (int stage = 0; stage < params.stages; ++stage) {
      ptx::mbarrier_init(ptx::shared_address(&front.stage[stage].full), 1 + 32);
      ptx::mbarrier_init(ptx::shared_address(&front.stage[stage].empty), T::kConsumers);
    }
    for (std::uint64_t& residual : front.residual) ptx::mbarrier_init(ptx::shared_address(&residual), 1);
    ptx::fence_mbarrier_init();
    ptx::fence_proxy_async();
  }
  __syncthreads();
  ptx::wait_for_earlier_kernels();
  ptx::let_next_kernel_begin();

  const int warp = __shfl_sync(kWarp, threadIdx.x / 32, 0);  // uniform, and known to be
  if (warp >= T::kConsumers) {
    ptx::release_registers_to<T::kProducerRegisters>();
    produce<T>(params, front, ring, warp - T::kConsumers);
  } else {
    ptx::claim_registers_to<T::kConsumerRegisters>();
    consume<T>(params, front, ring, warp);
  }
}

}  // namespace sparseloom::kernels::cuda::mma_dds
