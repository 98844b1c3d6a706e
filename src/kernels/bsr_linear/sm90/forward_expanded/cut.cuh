// How forward_expanded divides the work of a token tile among thread blocks. The tiles of outputs follow each
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

#include "kernels/bsr_linear/sm90/forward_expanded/params.cuh"
#include "kernels/shared/ptx/ld_global.cuh"

namespace sparseloom::kernels::cuda::expanded {

struct Cut {
  const std::int32_t* blocks_before;  // of each tile, and of the end, in shared memory
  int out_tiles, k_tiles, shares, x_lines;
  int block_lines_log2;

  __device__ __forceinline__ Cut(const Params& params, const std::int32_t* before)
      : blocks_before(before),
        out_tiles(params.out_tiles),
        k_tiles(params.k_tiles),
        shares(params.shares),
        x_lines(params.tile_tokens),
        block_lines_log2(params.side_log2 + params.k_side_log2 - 6) {}

  /// Lines before a tile.
  __device__ __forceinline__ std::int64_t before(int tile) const {
    return std::int64_t{tile} * k_tiles * x_lines +
           (static_cast<std::int64_t>(blocks_before[tile]) << block_lines_log2);
  }
  __device__ __forceinline__ std::int64_t start(int share) const {
    return before(out_tiles) * share / shares;
  }
  /// The first K tile of a tile that lies behind the share's start; k_tiles: none.
  __device__ __forceinline__ int k_tile(int share, int tile) const {
    const std::int64_t from = before(tile), at = start(share) - from, lines = before(tile + 1) - from;
    if (at <= 0) return 0;
    return at >= lines ? k_tiles : static_cast<int>(at * k_tiles / lines);
  }
  /// The tile in which a share starts; out_tiles: the end.
  __device__ __forceinline__ int tile(int share) const {
    const std::int64_t at = start(share);
    int low = 0, high = out_tiles;
    if (share >= shares) return out_tiles;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (before(middle) <= at ? low : high) = middle;
    }
    return low;
  }
};

/// A share's part of a tile: K tiles from `first` to `end`.
struct Part {
  int tile, first, end;
};

/// Calls use(part) for every part of a share that has K tiles, in order.
template <class Use>
__device__ __forceinline__ void for_each_part(const Cut& cut, int share, Use use) {
#pragma unroll 1
  for (int tile = cut.tile(share); tile < cut.out_tiles; ++tile) {
    const Part part{tile, cut.k_tile(share, tile), cut.k_tile(share + 1, tile)};
    if (part.first < part.end) use(part);
    if (part.end < cut.k_tiles) return;
  }
}

/// Fills blocks_before. All threads call it, and synchronise afterwards.
__device__ __forceinline__ void count_blocks(const Params& params, std::int32_t* blocks_before) {
  const int rows_log2 = 8 - params.side_log2;
  static_assert(kTileOutputs == 1 << 8);
  for (int tile = threadIdx.x; tile <= params.out_tiles; tile += kThreads)
    blocks_before[tile] = ptx::ld_global(params.list_begin + min(tile << rows_log2, params.block_rows));
}

}  // namespace sparseloom::kernels::cuda::expanded
