// The kernel for few tokens: it streams W through shared memory, so its time is that of W's bytes.
//
// A thread block multiplies a tile of 64 rows of W by all tokens, with the mainloop of forward_wgmma; a
// multiprocessor has room for two. If there are fewer such tiles than that, a cluster divides a tile: each of
// its thread blocks takes some of the K tiles, and they add their sums as those of semi24's decode do.
// Rejected: tiles of 128 rows, of which half of the multiprocessors have none where W has 4096 rows
// (docs/log/semi24.md).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/semi24_linear/sm90/decode/kernel.cuh"
#include "kernels/tiles_linear/sm90/forward_wgmma/kernel.cuh"

namespace sparseloom::kernels::cuda::tiles {

/// Two thread blocks share a multiprocessor.
inline constexpr int kDecodeBlocks = 2;
template <class Element, int kTokens>
using DecodeTile = Tile<Element, 1, kTokens,
                        (kTokens == 64   ? 6
                         : kTokens == 32 ? 9
                                         : 10),
                        1>;

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

template <class T>
__global__ void __launch_bounds__(T::kThreads, kDecodeBlocks)
    tiles_decode_kernel(const __grid_constant__ Params params, const semi24::DecodeOut to) {
  extern __shared__ __align__(1024) std::byte shared_bytes[];
  auto& shared = *reinterpret_cast<DecodeStorage<T>*>(shared_bytes);
  if (threadIdx.x == 0) init<T>(params, shared.barriers);
  __syncthreads();
  ptx::wait_for_earlier_kernels();
  ptx::let_next_kernel_begin();

  const int warpgroup = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);  // tells ptxas that it is uniform
  const unsigned rank = ptx::cluster_rank(), ranks = ptx::cluster_size();
  const std::int32_t row = static_cast<std::int32_t>(blockIdx.x / ranks) * T::kRows;
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
    copy_tile<T>(params, shared.rings, shared.barriers, turn, warp, row, 0, cut(rank), cut(rank + 1));
    __syncwarp();
  }
  semi24::add_and_store<T>(params.product, to, shared, of, sums, row, consumes, rank, ranks);
}

}  // namespace sparseloom::kernels::cuda::tiles
