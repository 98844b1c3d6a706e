// dX of W in 2:4 on Hopper:  out [m, cols] = dY [m, rows] W [rows, cols]
//
//   grid.x: tiles of in features, each of a cluster that divides the rows of W      grid.y: tiles of tokens
//   warps:  eight that multiply, one that copies values and dY by TMA, one that copies positions
//
// W^T is operand a, so in features lie along M and tokens along N. W is expanded from shared memory into the
// registers of a (expand.cuh), so that DRAM, L2 and shared memory hold stored values only; the tensor cores
// multiply by the zeros between. An output is summed in ascending order along the rows of a warpgroup's half
// or of all, and then over warpgroups and thread blocks in their order.
#pragma once

#include <cuda_runtime.h>

#include "kernels/semi24_linear/sm90/dx_expanded/store.cuh"
#include "kernels/shared/ptx/griddepcontrol.cuh"
#include "kernels/shared/ptx/sm90/cluster_rank.cuh"

namespace sparseloom::kernels::cuda::semi24_dx {

template <class T>
__global__ void __launch_bounds__(T::kThreads, 1) semi24_dx_kernel(const __grid_constant__ Params params) {
  extern __shared__ __align__(1024) std::byte shared_bytes[];
  auto& shared = *reinterpret_cast<Shared<T>*>(shared_bytes);
  if (threadIdx.x < 16) shared.selectors[threadIdx.x] = selectors_of(threadIdx.x);
  if (threadIdx.x == 0) {
    ptx::prefetch_tensor_map(&params.values);
    ptx::prefetch_tensor_map(&params.x);
    // A stage is full when its copies by TMA and those of each lane that copies positions have landed.
    Pipeline::init(shared.full, shared.empty, 1 + 32, T::kConsumers * 128);
    ptx::fence_mbarrier_init();
    ptx::fence_proxy_async();
  }
  __syncthreads();
  ptx::wait_for_earlier_kernels();
  ptx::let_next_kernel_begin();

  const int warpgroup = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);  // tells ptxas that it is uniform
  const unsigned rank = ptx::cluster_rank(), ranks = ptx::cluster_size();
  const std::int32_t input = static_cast<std::int32_t>(blockIdx.x / ranks) * T::kInputs;
  const std::int32_t token = static_cast<std::int32_t>(blockIdx.y) * T::kTokens;
  // This thread block's K tiles. The launch ensures that each has at least one.
  const auto cut = [&](unsigned at) {
    return static_cast<std::int32_t>(static_cast<unsigned>(params.tiles_of_depth) * at / ranks);
  };
  const std::int32_t begin = cut(rank), count = cut(rank + 1) - begin;
  // All warps wait at the same barriers, one by one, as in ../decode/kernel.cuh.
  const bool consumes = warpgroup < T::kConsumers;
  Sums<T> sums;
  if (consumes) {
    if constexpr (T::kMovesRegisters) ptx::claim_registers_to<T::kConsumerRegisters>();
    multiply_tiles<T>(sums, shared, warpgroup, count);
    if constexpr (!T::kDivides) store_sums<T>(params, sums, warpgroup, input, token);
  } else {
    if constexpr (T::kMovesRegisters) ptx::release_registers_to<T::kProducerRegisters>();
    const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32 % 4, 0);
    if (warp == 0) {
      if (ptx::elect_lane()) copy_tiles<T>(params, shared, input, token, begin, count);
      __syncwarp();
    } else if (warp == 1) {
      copy_positions<T>(params, shared, input, begin, count);
    }
  }
  if constexpr (T::kDivides) {
    __syncthreads();  // the sums overwrite the ring
    if (consumes) share_sums<T>(shared, sums, warpgroup);
    ptx::cluster_sync();
    if (consumes) store_share<T>(params, shared, input, token, rank, ranks);
    __syncwarp();
    if (ranks > 1) ptx::cluster_sync();  // the others may still read this one's sums
  }
}

}  // namespace sparseloom::kernels::cuda::semi24_dx
