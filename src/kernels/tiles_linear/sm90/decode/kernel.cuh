// The kernel for few tiles: of few tokens, whose time is that of W's bytes, or of few outputs, whose time
// would be that of a deep reduction.
//
// A thread block multiplies a tile, with the mainloop of forward_wgmma. If there are fewer tiles than
// multiprocessors have room for, a cluster divides a tile: each of its thread blocks takes some of the K
// tiles, and they add their sums as those of semi24's decode do. Rejected for one token: tiles of 128 rows,
// of which half of the multiprocessors have none where W has 4096 rows (docs/log/semi24.md).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/semi24_linear/sm90/decode/kernel.cuh"
#include "kernels/tiles_linear/sm90/forward_wgmma/kernel.cuh"

namespace sparseloom::kernels::cuda::tiles {

/// What semi24's store_share reads has its names there.
template <class T>
struct DecodeStorage {
  // Four floats more than rows, so that a warp's sums use all banks.
  static constexpr int kStride = T::kRows + 4;
  union {
    Rings<T> rings;
    float sums[T::kTokens][kStride];
  };
  Barriers<T> barriers;
  float x_scales[1];
};

/// `kAtOnce` thread blocks share a multiprocessor. Tiles of rows are the inner loop, as in forward_wgmma.
template <class T, int kAtOnce>
__global__ void __launch_bounds__(T::kThreads, kAtOnce)
    tiles_decode_kernel(const __grid_constant__ Params params, const semi24::DecodeOut outputs) {
  extern __shared__ __align__(1024) std::byte shared_bytes[];
  auto& shared = *reinterpret_cast<DecodeStorage<T>*>(shared_bytes);
  if (threadIdx.x == 0) init<T>(params, shared.barriers);
  __syncthreads();
  ptx::wait_for_earlier_kernels();
  ptx::let_next_kernel_begin();

  const int warpgroup = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);  // tells ptxas that it is uniform
  const unsigned rank = ptx::cluster_rank(), ranks = ptx::cluster_size();
  const unsigned tile = blockIdx.x / ranks;
  const std::int32_t row = static_cast<std::int32_t>(tile % params.product.row_tiles) * T::kRows,
                     token = static_cast<std::int32_t>(tile / params.product.row_tiles) * T::kTokens;
  const semi24::DecodeOut to = semi24::from_token(outputs, token, T::kTokens);
  // This thread block's K tiles. The launch ensures that each has at least one.
  const auto cut = [&](unsigned at) {
    return static_cast<std::int32_t>(static_cast<unsigned>(params.product.k_tiles) * at / ranks);
  };
  // All warps wait at the same barriers, one by one: synccheck reports cluster barriers that producers and
  // consumers reach in separate branches.
  const bool consumes = warpgroup < T::kConsumers;
  semi24::OfOutput of;
  semi24::Sums<T> sums;
  unsigned turn = 0;
  if (consumes) {
    of = semi24::fetch_of_output<T>(params.product, to, shared, row);
    multiply_stages<T>(sums, shared.rings, shared.barriers, warpgroup, turn);
  } else {
    const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32 % 4, 0);
    copy_tile<T>(params, shared.rings, shared.barriers, turn, warp, row, token, cut(rank), cut(rank + 1));
    __syncwarp();
  }
  semi24::add_and_store<T>(params.product, to, shared, of, sums, row, consumes, rank, ranks);
}

}  // namespace sparseloom::kernels::cuda::tiles
