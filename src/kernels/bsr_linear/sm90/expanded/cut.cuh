// How sm90_expanded divides the work of a token tile among thread blocks. The tiles of outputs follow each
// other, and each is cut at K tiles:
//
//   lines      |x w x w x w x w x w|x w w w x w w w x w w|x x x x x w|..    x: of X, w: of W; 128 bytes each
//   shares      0 0 0 0 0 0 0 1 1 1 1 1 1 1 2 2 2 2 2 2 3 3 3 3 3 3 ..      about the same number each
//
// A share's time is nearly that of its bytes: those of X are the same for every K tile, whatever is stored
// there, and those of W are the stored blocks. Inside a tile the blocks are taken to lie evenly, so that the
// cut needs only where block rows begin. All token tiles are cut at the same places, so that their thread
// blocks read the same blocks at about the same time.
#pragma once

#include "kernels/bsr_linear/sm90/expanded/params.cuh"
#include "kernels/shared/ptx/ld.cuh"

namespace sparseloom::kernels::cuda::expanded {

/// A K tile of a tile, in one number so that places can be compared.
constexpr int kPlaceLog2 = 10;
static_assert(kMostKTiles < 1 << kPlaceLog2);

/// Where each share begins, as places in shared memory; behind the last share, the end of all tiles.
struct Cut {
  const std::int32_t* begins;
  int k_tiles;

  /// A share's part of a tile: K tiles from `first` to `end`.
  struct Part {
    int tile, first, end;
  };
  /// Calls use(part) for every part of a share that has K tiles, in order.
  template <class Use>
  __device__ __forceinline__ void for_each_part(int share, Use use) const {
    const std::int32_t begin = begins[share], end = begins[share + 1];
#pragma unroll 1
    for (int tile = begin >> kPlaceLog2; tile <= end >> kPlaceLog2; ++tile) {
      const std::int32_t place = tile << kPlaceLog2;
      const Part part{tile, max(begin - place, 0), min(end - place, k_tiles)};
      if (part.first < part.end) use(part);
    }
  }
  /// Calls use(other) for every share behind `share` that has a part of the same tile.
  template <class Use>
  __device__ __forceinline__ void for_each_other(const Part& part, int share, Use use) const {
    const std::int32_t end = (part.tile + 1) << kPlaceLog2;
#pragma unroll 1
    for (int other = share + 1; begins[other] < end; ++other)
      if (begins[other] < begins[other + 1]) use(other);
  }
};

/// Finds where all shares begin. lines_before: of each tile and of the end. All threads call it.
__device__ __forceinline__ void find_shares(const Params& params, std::int32_t* lines_before,
                                            std::int32_t* begins) {
  static_assert(kTileOutputs == 1 << 8 && kMostShares < kThreads);
  const int rows_log2 = 8 - params.side_log2, block_lines_log2 = params.side_log2 + params.k_side_log2 - 6;
  for (int tile = threadIdx.x; tile <= params.out_tiles; tile += kThreads) {
    const std::int32_t blocks = ptx::ld_global(params.list_begin + min(tile << rows_log2, params.block_rows));
    lines_before[tile] = tile * params.k_tiles * params.tile_tokens + (blocks << block_lines_log2);
  }
  __syncthreads();
  const int share = threadIdx.x;
  if (share == params.shares) begins[share] = params.out_tiles << kPlaceLog2;
  if (share < params.shares) {
    const auto lines = static_cast<unsigned>(lines_before[params.out_tiles]),
               shares = static_cast<unsigned>(params.shares), each = lines / shares;
    const int at = static_cast<int>(share * each + min(static_cast<unsigned>(share), lines - each * shares));
    int low = 0, high = params.out_tiles;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (lines_before[middle] <= at ? low : high) = middle;
    }
    const auto behind = static_cast<unsigned>(at - lines_before[low]),
               of_tile = static_cast<unsigned>(lines_before[low + 1] - lines_before[low]),
               k_tiles = static_cast<unsigned>(params.k_tiles);
    const int k_tile = static_cast<int>(behind / ((of_tile + k_tiles - 1) / k_tiles));
    begins[share] = (low << kPlaceLog2) + k_tile;
  }
  __syncthreads();
}

}  // namespace sparseloom::kernels::cuda::expanded
