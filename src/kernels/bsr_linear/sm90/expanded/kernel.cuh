// Forward and dX of small blocks, which are expanded into dense operands on their way to shared memory:
//
//   forward  out[t, n] = act(sum_k x[t, k] W[n, k] + bias[n])      dX  out[t, n] = sum_k x[t, k] W[k, n]
//
//   grid.x: shares (cut.cuh), the last one first        grid.y: tiles of at most kTokens tokens
//   warps:  eight that multiply, and four that fill a ring of stages: X by TMA, and W by copies of 16 bytes,
//           with zeros between the blocks
//
// DRAM and L2 deliver only stored values. The tensor cores see a dense tile of 256 outputs, without the
// slices of 64 outputs x 16 positions that hold no block.
#pragma once

#include "kernels/bsr_linear/sm90/expanded/consume.cuh"
#include "kernels/bsr_linear/sm90/expanded/produce.cuh"
#include "kernels/shared/ptx/griddepcontrol.cuh"
#include "kernels/shared/ptx/sm90/registers.cuh"

namespace sparseloom::kernels::cuda::expanded {

/// Prefetches the index of this share into L2, as if blocks lay evenly.
__device__ __forceinline__ void prefetch_index(const Params& params, int share) {
  constexpr int kWords = 128 / 4;  // words of a cache line
  for (int row = threadIdx.x * kWords; row <= params.block_rows; row += kThreads * kWords)
    ptx::prefetch_line_l2(params.list_begin + row);
  const std::int64_t first = params.blocks * share / params.shares,
                     last = params.blocks * (share + 1) / params.shares;
  for (std::int64_t block = first + threadIdx.x * kWords; block < last; block += kThreads * kWords) {
    ptx::prefetch_line_l2(params.along + block);
    if (params.slot != nullptr) ptx::prefetch_line_l2(params.slot + block);
  }
}

template <class C>
__global__ void __launch_bounds__(kThreads, 1) expanded_kernel(const __grid_constant__ Params params) {
  extern __shared__ __align__(1024) std::byte bytes[];
  auto& shared = *reinterpret_cast<Shared<C>*>(bytes);
  const int share = params.shares - 1 - static_cast<int>(blockIdx.x);
  if (threadIdx.x == 0) {
    // Arrivals on `full`: all lanes that copy, one lane of each of their warps for the record, and one for X.
    Pipeline::init(shared.full, shared.empty, kGroups * 33 + 1, kConsumerWarps);
    ptx::fence_mbarrier_init();
    ptx::prefetch_tensor_map(&params.x);
  }
  prefetch_index(params, share);
  __syncthreads();
  ptx::wait_for_earlier_kernels();
  ptx::let_next_kernel_begin();
  find_shares(params, shared.lines_before, shared.begins);
  const Cut cut{shared.begins, params.k_tiles};
  const int warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0);  // tells ptxas that it is uniform
  if (warpgroup == 2) {
    ptx::release_registers_to<kProducerRegisters>();
    produce<C>(params, cut, share, shared, __shfl_sync(~0u, threadIdx.x / 32 - kConsumerWarps, 0));
  } else {
    ptx::claim_registers_to<kConsumerRegisters>();
    consume<C>(params, cut, share, shared, warpgroup);
  }
}

}  // namespace sparseloom::kernels::cuda::expanded
