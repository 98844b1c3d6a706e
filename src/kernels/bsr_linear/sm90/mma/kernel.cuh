// The kernel for weights W in blocks of 16 x 16, with fp32 sums:
//   forward: out [m, rows] = act(x [m, cols] W^T + bias) + residual
//   dx:      out [m, cols] = dy [m, rows] W
//
// The kernel is persistent: one thread block per multiprocessor takes tile after tile. A tile is 64 tokens x
// 512 outputs, which are 32 block rows (block columns in dx).
//
//   producers   Four warps first write a table of the tile's stored blocks. For each K tile of 64, TMA copies
//               X and cp.async copies the stored blocks.
//   ring        Each stage holds X, the blocks, and a stage descriptor for each consumer.
//   consumers   16 warps own two block rows each and issue mma.sync for the blocks stored there.
//
// If some K tile has more blocks than a stage has slots, every K tile takes several stages, and X is copied
// to each of them. Two mbarriers hand a stage over. `full` waits for the 32 lanes of the stage's producer,
// whose cp.async have landed, and for the bytes of X. `empty` waits for one arrival of each consumer warp.
// The sums are always added in ascending order of the reduction, whatever the grid and the ring, so results
// are deterministic.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/bsr_linear/sm90/mma/consume.cuh"
#include "kernels/bsr_linear/sm90/mma/produce.cuh"
#include "kernels/shared/ptx/griddepcontrol.cuh"
#include "kernels/shared/ptx/sm90/registers.cuh"

namespace sparseloom::kernels::cuda::sm90_mma {

template <class T>
__global__ void __launch_bounds__(T::kThreads, 1) sm90_mma_kernel(const __grid_constant__ Params params) {
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
  ptx::wait_for_earlier_kernels();  // the setup above may overlap the previous kernel
  ptx::let_next_kernel_begin();

  const int warp = __shfl_sync(kWarp, threadIdx.x / 32, 0);  // tells the compiler that it is uniform
  if (warp >= T::kConsumers) {
    ptx::release_registers_to<T::kProducerRegisters>();
    produce<T>(params, front, ring, warp - T::kConsumers);
  } else {
    ptx::claim_registers_to<T::kConsumerRegisters>();
    consume<T>(params, front, ring, warp);
  }
}

}  // namespace sparseloom::kernels::cuda::sm90_mma
