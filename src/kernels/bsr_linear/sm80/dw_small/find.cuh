// Finds the blocks of a thread block of dw_small, and their block rows. The host knows the number of blocks
// but not the lengths of the block rows.
#pragma once

#include <cstdint>

#include "kernels/bsr_linear/sm80/dw_small/params.cuh"
#include "kernels/shared/ptx/ld.cuh"

namespace sparseloom::kernels::cuda::dw_small {

/// The blocks of a tile: lane i of every warp holds the i-th; lanes past the end repeat the last block.
struct TileBlocks {
  std::int64_t first;  // the tile's first stored block
  int count;           // stored blocks of the tile
  std::int64_t row;    // block row of the lane's block
  int column;          // its block column
  int leader;          // the tile's first block in the same block row, whose dY the lane's block uses
};

/// Counts the warp's 32 ascending values that are at most `target`, which may differ from lane to lane.
__device__ __forceinline__ int count_up_to(int value, int target) {
  int count = 0;
#pragma unroll
  for (int step = 16; step > 0; step /= 2)
    if (__shfl_sync(~0u, value, count + step - 1) <= target) count += step;
  return __shfl_sync(~0u, value, count) <= target ? count + 1 : count;
}

/// crow[row + lane], or INT_MAX past the end of crow.
__device__ __forceinline__ int window_at(const Params& params, std::int64_t row, int lane) {
  return row + lane <= params.block_rows ? ptx::ld_global(params.crow + row + lane) : 0x7fffffff;
}

/// The last block row that begins at or before the block. The whole warp searches, 32 probes at a time.
__device__ __forceinline__ std::int64_t search_row(const Params& params, int block, int lane) {
  std::int64_t low = 0, high = params.block_rows;
  while (high - low > 1) {
    const std::int64_t step = (high - low + 31) / 32, probe = low + (lane + 1) * step;
    const bool not_behind = probe < high && ptx::ld_global(params.crow + probe) <= block;
    low += __popc(__ballot_sync(~0u, not_behind)) * step;
    high = high < low + step ? high : low + step;
  }
  return low;
}

/// search_row by one lane: a binary search.
__device__ __forceinline__ std::int64_t bisect_row(const Params& params, int block, std::int64_t low) {
  std::int64_t high = params.block_rows;
  while (high - low > 1) {
    const std::int64_t middle = (low + high) / 2;
    (ptx::ld_global(params.crow + middle) <= block ? low : high) = middle;
  }
  return low;
}

__device__ __forceinline__ std::int64_t guessed_row(const Params& params, std::int64_t block) {
  const auto row = static_cast<std::int64_t>(static_cast<float>(block) * params.rows_per_block) - 15;
  return row < 0 ? 0 : row < params.block_rows ? row : params.block_rows - 1;
}

/// One read of 32 entries of crow finds all block rows if these are about equally long.
__device__ __forceinline__ std::int64_t find_row(const Params& params, std::int64_t first, int block,
                                                 int lane) {
  std::int64_t row = guessed_row(params, first);
  int count = count_up_to(window_at(params, row, lane), block);
  if (__all_sync(~0u, count > 0 && count < 32)) return row + count - 1;
  row = search_row(params, static_cast<int>(first), lane);
  count = count_up_to(window_at(params, row, lane), block);
  return count < 32 ? row + count - 1 : bisect_row(params, block, row + 31);
}

__device__ __forceinline__ TileBlocks find_blocks(const Params& params, std::int64_t first, int lane) {
  TileBlocks of_tile;
  of_tile.first = first;
  const std::int64_t left = params.blocks - first;
  of_tile.count = left < params.tile_blocks ? static_cast<int>(left) : params.tile_blocks;
  const std::int64_t block = first + (lane < of_tile.count ? lane : of_tile.count - 1);
  of_tile.column = ptx::ld_global(params.col + block);
  of_tile.row = find_row(params, first, static_cast<int>(block), lane);
  const std::int64_t before = __shfl_up_sync(~0u, of_tile.row, 1);
  const unsigned leaders = __ballot_sync(~0u, lane == 0 || before != of_tile.row);
  of_tile.leader = 31 - __clz(static_cast<int>(leaders & ((2u << lane) - 1)));
  return of_tile;
}

}  // namespace sparseloom::kernels::cuda::dw_small
