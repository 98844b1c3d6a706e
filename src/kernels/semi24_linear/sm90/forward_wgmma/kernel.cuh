// The persistent, warp-specialised Hopper kernel for W in 2:4:
//
//   out [m, rows] = act(x [m, cols] W^T + bias) + residual          bf16 and f16
//   out [m, rows] = act(scales x [m, cols] W^T + bias)              e4m3 and int8, as matmul_args.h says
//
// W is wgmma.sp's sparse operand, so rows of W lie along M and tokens along N. Values come straight from
// memory of record, whose rows are K-major. One producer warp copies weights and another x, by TMA; two
// consumer warpgroups multiply, each half of the tile's rows by all of its tokens. Every instance sums an
// output in ascending order along K; promoted sums of e4m3 in runs of 128.
#pragma once

#include <cuda_runtime.h>

#include "kernels/semi24_linear/sm90/forward_wgmma/mainloop.cuh"
#include "kernels/semi24_linear/sm90/forward_wgmma/store.cuh"
#include "kernels/semi24_linear/sm90/forward_wgmma/walk.cuh"
#include "kernels/shared/ptx/griddepcontrol.cuh"

namespace sparseloom::kernels::cuda::semi24 {

template <class T>
struct SharedStorage {
  Rings<T> rings;
  Staging<T> staging;
  Barriers<T> barriers;
  alignas(8) std::uint64_t residual[T::kConsumers];
};

template <class T>
__global__ void __launch_bounds__(T::kThreads, 1) semi24_wgmma_kernel(const __grid_constant__ Params params) {
  extern __shared__ __align__(1024) std::byte shared_bytes[];
  auto& shared = *reinterpret_cast<SharedStorage<T>*>(shared_bytes);
  if (threadIdx.x == 0) {
    ptx::prefetch_tensor_map(&params.values);
    ptx::prefetch_tensor_map(&params.x);
    ptx::prefetch_tensor_map(&params.out);
    for (std::uint64_t& barrier : shared.residual) ptx::mbarrier_init(ptx::shared_address(&barrier), 1);
    Stages<T>::init(shared.barriers);
  }
  __syncthreads();
  ptx::wait_for_earlier_kernels();
  ptx::let_next_kernel_begin();

  const int warpgroup = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);  // tells ptxas that it is uniform
  const Stages<T> stages(shared.rings, shared.barriers);
  unsigned turn = 0;
  if (warpgroup == T::kConsumers) {
    ptx::release_registers_to<T::kProducerRegisters>();
    const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32 % 4, 0);
    if (warp < 2 && ptx::elect_lane()) {
#pragma unroll 1
      for (Tiles<T> tiles(params); tiles.any(params); tiles.advance(params)) {
#pragma unroll 1
        for (std::int32_t k = 0; k < params.k_tiles; ++k, ++turn) {
          if (warp == 0)
            copy_weights<T>(params, stages, turn, tiles.row(), k);
          else
            copy_x<T>(params, stages, turn, tiles.token(), k);
        }
      }
    }
  } else {
    ptx::claim_registers_to<T::kConsumerRegisters>();
    Store<T> store(shared.staging, shared.residual, warpgroup);
#pragma unroll 1
    for (Tiles<T> tiles(params); tiles.any(params); tiles.advance(params)) {
      Sums<T> sums;
      store.begin(params, tiles.row(), tiles.token());
      multiply_tile<T>(sums, stages, warpgroup, turn, params.k_tiles);
      turn += params.k_tiles;
      store.end(params, tiles.token(), sums);
    }
  }
}

}  // namespace sparseloom::kernels::cuda::semi24
