// Finds the blocks of a work item. The indices are on the device and the host knows only their number, so
// each warp that needs the items counts them from crow. The blocks of each block row are divided evenly among
// the fewest possible items, and the items are numbered row after row. cut.h says which thread block sums
// which tokens of an item.
//
// All thread blocks begin at the first token and advance at nearly the same pace, so rows of X and dY are
// read from DRAM once per wave, and from L2 by all thread blocks that need them.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/bsr_linear/sm90/wgmma/dw/tile.cuh"

namespace sparseloom::kernels::cuda::wgmma::dw {

constexpr unsigned kWarp = 0xffffffff;

/// Block rows that a warp examines together: four neighbours per lane.
constexpr int kLaneRows = 4, kWindowRows = 32 * kLaneRows;

struct Window {
  std::int32_t edge[kLaneRows + 1];  // crow of this lane's block rows
  std::int32_t before, own, all;     // items of the lanes below, of this lane, of all lanes
};

__device__ __forceinline__ std::int32_t items_of_row(const Params& params, std::int32_t length) {
  return static_cast<std::int32_t>(static_cast<unsigned>(length + params.most_blocks - 1) /
                                   static_cast<unsigned>(params.most_blocks));
}

template <class P>
__device__ __forceinline__ Window load_window(const P& params, std::int32_t first_row) {
  const int lane = threadIdx.x % 32;
  Window window;
#pragma unroll
  for (int i = 0; i <= kLaneRows; ++i) {  // rows after the last are empty
    window.edge[i] = list_begin(params, min(first_row + lane * kLaneRows + i, params.block_rows));
  }
  window.own = 0;
#pragma unroll
  for (int i = 0; i < kLaneRows; ++i) window.own += items_of_row(params, window.edge[i + 1] - window.edge[i]);
  std::int32_t through = window.own;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const std::int32_t below = __shfl_up_sync(kWarp, through, distance);
    if (lane >= distance) through += below;
  }
  window.before = through - window.own;
  window.all = __shfl_sync(kWarp, through, 31);
  return window;
}

/// The number of items. Like all functions here, it is called by a whole warp.
template <class P>
__device__ __forceinline__ std::int32_t count_items(const P& params) {
  std::int32_t items = 0;
#pragma unroll 1
  for (std::int32_t row = 0; row < params.block_rows; row += kWindowRows)
    items += load_window(params, row).all;
  return items;
}

/// The start of the search for the next item; items are requested in ascending order.
struct Cursor {
  std::int32_t row = 0, before = 0;  // first row of a window, and the items before it
};

/// Blocks first .. first + blocks - 1 of the index, all in block row `row`.
struct Item {
  std::int32_t row, first, blocks;
};

/// Finds item `index` of those that count_items() counts.
template <class P>
__device__ __forceinline__ Item find_item(const P& params, std::int32_t index, Cursor& cursor) {
  Window window = load_window(params, cursor.row);
#pragma unroll 1
  while (index - cursor.before >= window.all) {
    cursor.before += window.all;
    cursor.row += kWindowRows;
    window = load_window(params, cursor.row);
  }
  // The item's index among this lane's items, later among its row's items.
  std::int32_t in_row = index - cursor.before - window.before;
  const bool has_item = in_row >= 0 && in_row < window.own;
  Item item{0, 0, 0};
  if (has_item) {
    bool row_found = false;
#pragma unroll
    for (int i = 0; i < kLaneRows; ++i) {
      const std::int32_t length = window.edge[i + 1] - window.edge[i], items = items_of_row(params, length);
      if (!row_found && in_row < items) {
        row_found = true;
        const std::int32_t least = length / items,
                           longer = length % items;  // the first `longer` have one more
        item.row = cursor.row + static_cast<int>(threadIdx.x % 32) * kLaneRows + i;
        item.first = window.edge[i] + in_row * least + min(in_row, longer);
        item.blocks = least + (in_row < longer ? 1 : 0);
      } else if (!row_found) {
        in_row -= items;
      }
    }
  }
  const int source = __ffs(static_cast<int>(__ballot_sync(kWarp, has_item))) - 1;
  return {__shfl_sync(kWarp, item.row, source), __shfl_sync(kWarp, item.first, source),
          __shfl_sync(kWarp, item.blocks, source)};
}

}  // namespace sparseloom::kernels::cuda::wgmma::dw
