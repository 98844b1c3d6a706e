// The persistent, warp-specialised Hopper kernel for W of tiles:
//
//   out [m, rows] = act(x [m, cols] W^T + bias) + residual          bf16 and f16
//
// Rows of W lie along M and tokens along N. Producer warps copy, for each 64 columns, the stored units of
// the tile's rows and x; two consumer warpgroups multiply a dense unit by wgmma and a 2:4 one by wgmma.sp,
// into the same sums. Every instance sums an output in ascending order along K.
#pragma once

#include <cuda_runtime.h>

#include "kernels/semi24_linear/sm90/forward_wgmma/store.cuh"
#include "kernels/semi24_linear/sm90/forward_wgmma/walk.cuh"
#include "kernels/shared/ptx/griddepcontrol.cuh"
#include "kernels/tiles_linear/sm90/forward_wgmma/mainloop.cuh"

namespace sparseloom::kernels::cuda::tiles {

template <class T>
struct SharedStorage {
  Rings<T> rings;
  semi24::Staging<T> staging;
  Barriers<T> barriers;
  alignas(8) std::uint64_t residual[T::kConsumers];
};

/// One thread calls it.
template <class T>
__device__ __forceinline__ void init(const Params& params, Barriers<T>& barriers) {
  ptx::prefetch_tensor_map(&params.product.values);
  ptx::prefetch_tensor_map(&params.dense);
  ptx::prefetch_tensor_map(&params.product.x);
  Pipeline::init(barriers.full, barriers.empty, T::kUnits, T::kConsumers * 128);
  ptx::fence_mbarrier_init();
}

template <class T>
__global__ void __launch_bounds__(T::kThreads, 1) tiles_wgmma_kernel(const __grid_constant__ Params params) {
  extern __shared__ __align__(1024) std::byte shared_bytes[];
  auto& shared = *reinterpret_cast<SharedStorage<T>*>(shared_bytes);
  if (threadIdx.x == 0) {
    ptx::prefetch_tensor_map(&params.product.out);
    for (std::uint64_t& barrier : shared.residual) ptx::mbarrier_init(ptx::shared_address(&barrier), 1);
    init<T>(params, shared.barriers);
  }
  __syncthreads();
  ptx::wait_for_earlier_kernels();
  ptx::let_next_kernel_begin();

  const int warpgroup = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);  // tells ptxas that it is uniform
  const semi24::Params& product = params.product;
  unsigned turn = 0;
  if (warpgroup == T::kConsumers) {
    ptx::release_registers_to<T::kProducerRegisters>();
    const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32 % 4, 0);
#pragma unroll 1
    for (semi24::Tiles<T> tiles(product); tiles.any(product); tiles.advance(product))
      copy_tile<T>(params, shared.rings, shared.barriers, turn, warp, tiles.row(), tiles.token(), 0,
                   product.k_tiles);
  } else {
    ptx::claim_registers_to<T::kConsumerRegisters>();
    semi24::Store<T> store(shared.staging, shared.residual, warpgroup);
#pragma unroll 1
    for (semi24::Tiles<T> tiles(product); tiles.any(product); tiles.advance(product)) {
      semi24::Sums<T> sums;
      store.begin(product, tiles.row(), tiles.token());
      multiply_stages<T>(sums, shared.rings, shared.barriers, warpgroup, turn);
      store.end(product, tiles.token(), sums);
    }
  }
}

}  // namespace sparseloom::kernels::cuda::tiles
