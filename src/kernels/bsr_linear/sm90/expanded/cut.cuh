// How sm90_expanded divides the work of a token tile among thread blocks, as in stream-K. The tiles of
// outputs are laid end to end, and cut between K tiles:
//
//   lines      |x w x w x w x w x w|x w w w x w w w x w w|x x x x x w|..    x: of X, w: of W; 128 bytes each
//   shares      0 0 0 0 0 0 0 1 1 1 1 1 1 1 2 2 2 2 2 2 3 3 3 3 3 3 ..      nearly equal numbers of lines
//
// A share's time is nearly proportional to its bytes: every K tile has the same bytes of X, whatever is
// stored there, plus the stored blocks of W. Inside a tile the blocks are assumed to lie evenly, so the cut
// needs only the starts of block rows. All token tiles are cut at the same positions, so that their thread
// blocks read the same blocks at about the same time. A segment is the part of one tile that one share holds.
#pragma once

#include "kernels/bsr_linear/sm90/expanded/params.cuh"
#include "kernels/shared/ptx/ld.cuh"

namespace sparseloom::kernels::cuda::expanded {

/// A K tile of a tile, encoded in one number so that positions can be compared.
constexpr int kPositionLog2 = 10;
static_assert(kMostKTiles < 1 << kPositionLog2);

/// The start of each share, as positions in shared memory; after the last share, the end of all tiles.
struct Cut {
  const std::int32_t* begins;
  int k_tiles;

  /// A segment: a share's K tiles of one tile, from `first` to `end`.
  struct Segment {
    int tile, first, end;
  };
  /// Calls use(segment) for every nonempty segment of a share, in order.
  template <class Use>
  __device__ __forceinline__ void for_each_segment(int share, Use use) const {
    const std::int32_t begin = begins[share], end = begins[share + 1];
#pragma unroll 1
    for (int tile = begin >> kPositionLog2; tile <= end >> kPositionLog2; ++tile) {
      const std::int32_t tile_begin = tile << kPositionLog2;
      const Segment segment{tile, max(begin - tile_begin, 0), min(end - tile_begin, k_tiles)};
      if (segment.first < segment.end) use(segment);
    }
  }
  /// Calls use(other) for every later share that has a segment of the same tile.
  template <class Use>
  __device__ __forceinline__ void for_each_other(const Segment& segment, int share, Use use) const {
    const std::int32_t end = (segment.tile + 1) << kPositionLog2;
#pragma unroll 1
    for (int other = share + 1; begins[other] < end; ++other)
      if (begins[other] < begins[other + 1]) use(other);
  }
};

/// Finds the starts of all shares. lines_before: for each tile and for the end. All threads call it.
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
  if (share == params.shares) begins[share] = params.out_tiles << kPositionLog2;
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
    begins[share] = (low << kPositionLog2) + k_tile;
  }
  __syncthreads();
}

}  // namespace sparseloom::kernels::cuda::expanded
