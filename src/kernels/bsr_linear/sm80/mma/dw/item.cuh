// Finds the blocks of a thread block of the dW kernels, from its item id and crow alone, since the host knows
// the number of blocks but not the lengths of the block rows.
#pragma once

#include <cstdint>

#include "kernels/bsr_linear/sm80/mma/dw/instances.h"

namespace sparseloom::kernels::cuda::mma::dw {

struct Item {
  std::int64_t row;    // block row
  std::int64_t first;  // first stored block
  int blocks;          // 0: nothing to do
};

// What the functions below need of their Params beside its members. A convolution overloads these: its blocks
// are those of W under one tap (bsr_conv/sm80/dw_mma).
__device__ __forceinline__ std::int64_t list_begin(const MmaDwParams& params, std::int64_t row) {
  return params.crow[row];
}
__device__ __forceinline__ std::int32_t block_column(const MmaDwParams& params, std::int64_t block) {
  return params.col[block];
}

/// First item id of block row r. It rises with r. Since each block row adds one id to crow[r] / group, every
/// block row has at least ceil(length / group) ids whatever its length, and at most two too many.
template <class Params>
__device__ __forceinline__ std::int64_t first_id(const Params& params, std::int64_t row) {
  return mma_dw_items(list_begin(params, row), row, params.log2_group);
}

/// The block row with first_id(row) <= id < first_id(row + 1). The whole warp searches, 32 probes at a time:
/// two L2 latencies up to 1024 block rows, where bisection would take ten.
template <class Params>
__device__ __forceinline__ std::int64_t row_of_id(const Params& params, std::int64_t id, int lane) {
  std::int64_t low = 0, high = params.block_rows;
  while (high - low > 1) {
    const std::int64_t step = (high - low + 31) / 32;
    const std::int64_t probe = low + (lane + 1) * step;
    const bool not_behind = probe < high && first_id(params, probe) <= id;
    low += __popc(__ballot_sync(~0u, not_behind)) * step;
    high = high < low + step ? high : low + step;
  }
  return low;
}

/// A block row's blocks are divided evenly among the fewest possible items, so that no thread block gets a
/// short remainder.
template <class Params>
__device__ __forceinline__ Item find_item(const Params& params, std::int64_t id, int lane) {
  const std::int64_t row = row_of_id(params, id, lane);
  const std::int64_t first = list_begin(params, row), length = list_begin(params, row + 1) - first;
  const std::int64_t share = id - first_id(params, row);
  const std::int64_t shares = (length + (std::int64_t{1} << params.log2_group) - 1) >> params.log2_group;
  if (share >= shares) return {row, first, 0};
  const std::int64_t begin = share * length / shares, end = (share + 1) * length / shares;
  return {row, first + begin, static_cast<int>(end - begin)};
}

}  // namespace sparseloom::kernels::cuda::mma::dw
