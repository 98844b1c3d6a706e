// Which blocks a thread block of dw_small computes, and in which block rows they lie. The host knows the
// number of blocks but not the lengths of the block rows.
#pragma once

#include <cstdint>

#include "kernels/bsr_linear/sm80/dw_small/params.cuh"
#include "kernels/shared/ptx/ld.cuh"

namespace sparseloom::kernels::cuda::dw_small {

/// Lane i of every warp knows the i-th block of the tile; lanes past the end repeat the last block.
struct Share {
  std::int64_t first;  // stored block
  int blocks;
  std::int64_t row;  // block row of the lane's block
  int column;        // its block column
  int leader;        // the tile's first block in the same block row, whose dY the lane's block uses
};

/// How many of the warp's 32 ascending values are at most `target`, which may differ from lane to lane.
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

__device__ __forceinline__ Share find_share(const Params& params, std::int64_t first, int lane) {
  Share share;
  share.first = first;
  const std::int64_t left = params.blocks - first;
  share.blocks = left < params.tile_blocks ? static_cast<int>(left) : params.tile_blocks;
  const std::int64_t block = first + (lane < share.blocks ? lane : share.blocks - 1);
  share.column = ptx::ld_global(params.col + block);
  share.row = find_row(params, first, static_cast<int>(block), lane);
  const std::int64_t before = __shfl_up_sync(~0u, share.row, 1);
  const unsigned leaders = __ballot_sync(~0u, lane == 0 || before != share.row);
  share.leader = 31 - __clz(static_cast<int>(leaders & ((2u << lane) - 1)));
  return share;
}

}  // namespace sparseloom::kernels::cuda::dw_small
