// Finds the strips of a work item of wgmma/dw_regions. The host knows only sizes, so every thread block
// counts the blocks of all regions once.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/bsr_linear/sm90/wgmma/dw_regions/tile.cuh"

namespace sparseloom::kernels::cuda::wgmma::dw {

/// Block rows of a region; block_rows is the rows of one block.
__device__ __forceinline__ std::int32_t region_rows(const RegionParams& params, int block_rows) {
  return params.row_boxes * kBoxSide / block_rows;
}

/// The strips, or units, of `blocks` blocks of one block row.
template <class T>
__device__ __forceinline__ std::int32_t strips_of_row(const RegionParams& params, std::int32_t blocks) {
  const std::int32_t units = blocks << (params.bn_log2 - 4);
  return T::kUnits ? units : (units + 3) / 4;
}

/// Fills `counts` and `items`. All threads call it; the ring is scratch space until TMA writes to it.
template <class T>
__device__ __forceinline__ void count_regions(const RegionParams& params, RegionStorage<T>& shared) {
  constexpr int kAtOnce = 8,
                kWarps =
                    T::kThreads / 32;  // kAtOnce: block rows of a warp whose loads are in flight together
  auto* const counts = reinterpret_cast<std::int32_t*>(shared.ring);
  const std::int32_t cells = params.block_rows * params.across;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (std::int32_t i = threadIdx.x; i < cells; i += T::kThreads) counts[i] = 0;
  __syncthreads();
  // Count the blocks of each block row in each region.
#pragma unroll 1
  for (std::int32_t base = warp; base < params.block_rows; base += kWarps * kAtOnce) {
    std::int32_t begin[kAtOnce], end[kAtOnce], column[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const std::int32_t row = min(base + i * kWarps, params.block_rows - 1);
      begin[i] = __ldg(params.crow + row) + lane;
      end[i] = base + i * kWarps < params.block_rows ? __ldg(params.crow + row + 1) : 0;
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) column[i] = begin[i] < end[i] ? __ldg(params.col + begin[i]) : -1;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      std::int32_t* const row = counts + (base + i * kWarps) * params.across;
      if (column[i] >= 0) atomicAdd(row + (column[i] << params.bn_log2) / kBoxSide / params.column_boxes, 1);
#pragma unroll 1
      for (std::int32_t block = begin[i] + 32; block < end[i]; block += 32) {
        atomicAdd(row + (__ldg(params.col + block) << params.bn_log2) / kBoxSide / params.column_boxes, 1);
      }
    }
  }
  __syncthreads();
  // Keep the counts as bytes, and derive the items of each region from them.
  for (std::int32_t i = threadIdx.x; i < cells; i += T::kThreads)
    shared.counts[i] = static_cast<std::uint8_t>(counts[i]);
  const std::int32_t rows = region_rows(params, T::kRows);
  for (std::int32_t region = threadIdx.x; region < params.down * params.across; region += T::kThreads) {
    const std::int32_t first = region / params.across * rows, end = min(first + rows, params.block_rows);
    std::int32_t strips = 0;
#pragma unroll 1
    for (std::int32_t row = first; row < end; ++row)
      strips += strips_of_row<T>(params, counts[row * params.across + region % params.across]);
    shared.items[region] = static_cast<std::uint8_t>((strips + T::kRoom - 1) / T::kRoom);
  }
  ptx::fence_proxy_async();
  __syncthreads();
}

__device__ __forceinline__ std::int32_t sum_of_warp(std::int32_t value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(0xffffffff, value, distance);
  return value;
}

/// The sum of the lower lanes' values.
__device__ __forceinline__ std::int32_t sum_before(std::int32_t value) {
  std::int32_t through = value;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const std::int32_t below = __shfl_up_sync(0xffffffff, through, distance);
    if (static_cast<int>(threadIdx.x % 32) >= distance) through += below;
  }
  return through - value;
}

/// The number of items. Like the functions below, it is called by a whole warp.
template <class T>
__device__ __forceinline__ std::int32_t count_items(const RegionParams& params,
                                                    const RegionStorage<T>& shared) {
  std::int32_t items = 0;
  for (std::int32_t region = threadIdx.x % 32; region < params.down * params.across; region += 32)
    items += shared.items[region];
  return sum_of_warp(items);
}

/// A region, the index of an item among the region's, and how many items the region has.
struct Place {
  std::int32_t region, share, shares;
};

/// Finds item `index` of those that count_items() counts.
template <class T>
__device__ __forceinline__ Place find_item(const RegionParams& params, const RegionStorage<T>& shared,
                                           std::int32_t index) {
  std::int32_t first = 0;
  while (true) {
    const std::int32_t region = first + static_cast<int>(threadIdx.x % 32);
    const std::int32_t own = region < params.down * params.across ? shared.items[region] : 0;
    const std::int32_t share = index - sum_before(own);
    const unsigned here = __ballot_sync(0xffffffff, share >= 0 && share < own);
    if (here != 0) {
      const int source = __ffs(static_cast<int>(here)) - 1;
      return {first + source, __shfl_sync(0xffffffff, share, source), __shfl_sync(0xffffffff, own, source)};
    }
    index -= sum_of_warp(own);
    first += 32;
  }
}

/// Units of an item per consumer warp; the last warps may have fewer.
template <class T>
__device__ __forceinline__ std::int32_t units_of_warp(std::int32_t units) {
  return (units + T::kConsumers * 4 - 1) / (T::kConsumers * 4);
}

/// Lists the strips of item shared.item.part.item in shared memory. One warp calls it; each lane has a block
/// row of the region.
template <class T>
__device__ __forceinline__ void list_strips(const RegionParams& params, RegionStorage<T>& shared) {
  // Find the region, and the blocks of this lane's block row in it.
  const Place place = find_item(params, shared, shared.item.part.item);
  const std::int32_t down = place.region / params.across, across = place.region % params.across;
  const std::int32_t lane = static_cast<std::int32_t>(threadIdx.x % 32), rows = region_rows(params, T::kRows);
  const std::int32_t row = down * rows + lane;
  const bool exists = lane < rows && row < params.block_rows;
  std::int32_t first = exists ? __ldg(params.crow + row) : 0, blocks = 0;
  if (exists) {
    for (std::int32_t i = 0; i < across; ++i) first += shared.counts[row * params.across + i];
    blocks = shared.counts[row * params.across + across];
  }
  const std::int32_t own = strips_of_row<T>(params, blocks), before = sum_before(own), all = sum_of_warp(own);
  // Divide the region's strips evenly among its items, and find which of this lane's are in this item.
  const std::int32_t least = all / place.shares, longer = all % place.shares;
  const std::int32_t begin = place.share * least + min(place.share, longer),
                     end = begin + least + (place.share < longer ? 1 : 0);
  const std::int32_t own_begin = max(begin - before, 0), own_end = min(end - before, own);

  const int fragments_log2 = params.bn_log2 - 4;
  const int most = T::kUnits ? 1 : 4 >> fragments_log2;  // log2 of a block's fragments; a strip's blocks
  const std::int32_t corner = across * params.column_boxes * kBoxSide;
  const auto column_of_unit = [&](std::int32_t unit) {
    return (__ldg(params.col + first + (unit >> fragments_log2)) << params.bn_log2) - corner +
           (unit & ((1 << fragments_log2) - 1)) * 16;
  };
  const auto columns_of = [&](std::int32_t strip, std::int32_t(&columns)[4]) {  // columns within the region
    const std::int32_t count = min(most, blocks - strip * most);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      columns[i] =
          (__ldg(params.col + first + strip * most + (i < count ? i : 0)) << params.bn_log2) - corner;
    }
    return count;
  };
  // Find the boxes of X and of dY that the item's strips touch.
  std::uint32_t column_boxes = 0;
  for (std::int32_t strip = own_begin; strip < own_end; ++strip) {
    if constexpr (T::kUnits) {
      column_boxes |= 1u << (column_of_unit(strip) / kBoxSide);
    } else {
      std::int32_t columns[4];
      columns_of(strip, columns);
#pragma unroll
      for (int i = 0; i < 4; ++i) column_boxes |= 1u << (columns[i] / kBoxSide);
    }
  }
  const int row_box = lane * T::kRows / kBoxSide;
  column_boxes = __reduce_or_sync(0xffffffff, column_boxes);
  const std::uint32_t row_boxes = __reduce_or_sync(0xffffffff, own_begin < own_end ? 1u << row_box : 0u);
  const auto below = [](std::uint32_t boxes, int box) { return __popc(boxes & ((1u << box) - 1)); };
  const std::uint32_t dy =
      (below(row_boxes, row_box % 32) * T::kBoxBytes + lane * T::kRows % kBoxSide * 2) / 16;
  // Write this lane's strips, and the offsets of their operands in a stage.
  const std::int32_t warp_units = units_of_warp<T>(end - begin);
  for (std::int32_t strip = own_begin; strip < own_end; ++strip) {
    const std::int32_t at = before + strip - begin;
    if constexpr (T::kUnits) {  // a warp gets consecutive units, most of which share rows of dY
      const std::int32_t warp = at / warp_units, place = at % warp_units * T::kConsumers + warp / 4,
                         column = column_of_unit(strip);
      const std::uint32_t box = __popc(row_boxes) + below(column_boxes, column / kBoxSide);
      shared.strips[place][warp % 4] = {first + (strip >> fragments_log2),
                                        (strip & ((1 << fragments_log2) - 1)) + 1, row};
      shared.places[place][warp % 4] = (box * T::kBoxBytes / 16 + column % kBoxSide / 8) | dy << 16;
      continue;
    }
    std::int32_t columns[4];
    const std::int32_t count = columns_of(strip, columns);
    shared.strips[at][0] = {first + strip * most, count, row};
#pragma unroll
    for (int warp = 0; warp < 4; ++warp) {
      const std::int32_t block = warp >> fragments_log2;
      const std::int32_t column = (block == 0   ? columns[0]
                                   : block == 1 ? columns[1]
                                   : block == 2 ? columns[2]
                                                : columns[3]) +
                                  (warp & ((1 << fragments_log2) - 1)) * 16;
      const std::uint32_t box = __popc(row_boxes) + below(column_boxes, column / kBoxSide);
      shared.places[at][warp] = (box * T::kBoxBytes / 16 + column % kBoxSide / 8) | dy << 16;
    }
  }
  if (lane == 0) {
    shared.item.strips = end - begin;
    shared.item.down = down;
    shared.item.across = across;
    shared.item.row_boxes = row_boxes;
    shared.item.column_boxes = column_boxes;
  }
}

}  // namespace sparseloom::kernels::cuda::wgmma::dw
