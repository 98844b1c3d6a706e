// How sm90_decode divides its work: strips of 32 outputs go to clusters, and their units to warps. Included
// by kernel.cuh.
//
//   units, strip by strip   |0 0 0 0 0|1 1 1|  |3 3 3 3 3 3 3 3|4|5 5 ..   strip of a unit (strip 2 is empty)
//   warps of a cluster       a a b b c c d d     a a b b c c d d ..         warp of a unit
//
// A cluster takes whole strips: those that begin in its share of the cost, where every unit and every strip
// costs one. Inside a cluster every warp takes the same number of consecutive units. So a heavy block row
// occupies a cluster, not a multiprocessor.
#pragma once

#include "kernels/bsr_linear/sm90/decode/config.cuh"
#include "kernels/shared/ptx/griddepcontrol.cuh"
#include "kernels/shared/ptx/ld_global.cuh"
#include "kernels/shared/ptx/sm90/bulk.cuh"

namespace sparseloom::kernels::cuda::decode90 {

/// Prefetches into L2 at most kMost bytes of the values that a warp would read if all values were cut evenly.
/// This is what the warp reads first, give or take a row.
template <int kMost>
__device__ __forceinline__ void prefetch_values(const Params& params, int number) {
  const auto bytes = static_cast<std::uint32_t>(params.warp_bytes < kMost ? params.warp_bytes : kMost);
  if (bytes > 0)
    ptx::bulk_prefetch_l2(static_cast<const char*>(params.values) + number * params.warp_bytes, bytes);
}

/// Prefetches into L2 the row pointers, and the column indices that a warp would read if all rows had the
/// same length. All lanes of a warp call it.
__device__ __forceinline__ void prefetch_index(const Params& params, int number, int lane) {
  constexpr int kCacheLineWords = 32;  // words of a cache line
  for (int row = threadIdx.x * kCacheLineWords; row <= params.block_rows; row += blockDim.x * kCacheLineWords)
    ptx::prefetch_line_l2(params.crow + row);
  const std::int64_t first = number * params.warp_blocks,
                     last = min(first + params.warp_blocks, std::int64_t{params.blocks}) - 1;
  for (std::int64_t block = first + lane * kCacheLineWords; block <= last; block += 32 * kCacheLineWords)
    ptx::prefetch_line_l2(params.col + block);
}

/// The row pointers and what follows from them. `row` is a block row.
struct Rows {
  const std::int32_t* crow;  // shared memory
  int count;
  int strips_log2;

  /// All strips.
  __device__ __forceinline__ int strips() const { return count << strips_log2; }
  __device__ __forceinline__ int length(int row) const { return crow[row + 1] - crow[row]; }
  /// Cost of all strips of the block rows before this one.
  __device__ __forceinline__ int cost_before(int row) const { return (crow[row] + row) << strips_log2; }

  /// Number of units before a strip.
  __device__ __forceinline__ int unit_of(int strip) const {
    const int row = strip >> strips_log2, in_row = strip & ((1 << strips_log2) - 1);
    const int first = crow[row] << strips_log2;
    return in_row == 0 ? first : first + in_row * length(row);
  }
};

/// Finds the first strip of `cluster`: the first one for which the cost before it reaches the cluster's
/// share. The thread that handles the preceding block row writes it to `border`; other threads may read it
/// after a __syncthreads. All threads of the thread block call it.
__device__ __forceinline__ void find_border(const Params& params, const Rows& rows, int cluster, int clusters,
                                            int* border) {
  // cost * cluster / clusters, rounded down, with share_step = 2^32 / clusters rounded up.
  const auto cost = static_cast<int>(__umulhi(static_cast<unsigned>(rows.cost_before(rows.count)),
                                              static_cast<unsigned>(cluster) * params.share_step));
  if (cluster == clusters || cost == 0) {
    if (threadIdx.x == 0) *border = cluster == clusters ? rows.strips() : 0;
    return;
  }
  for (int row = threadIdx.x; row < rows.count; row += blockDim.x) {
    const int left = cost - rows.cost_before(row), each = rows.length(row) + 1;
    if (left <= 0 || left > each << rows.strips_log2) continue;
    *border = (row << rows.strips_log2) + 1 + (left > each) + (left > 2 * each) +
              (left > 3 * each);  // there are at most four strips
  }
}

/// The work of a cluster: its units, in one run for each of its warps, the longer runs first. Warps are
/// numbered across the thread blocks first, so that the longer runs spread over them.
struct Share {
  int first_strip, last_strip;  // the last is exclusive
  int first_unit;
  int each, longer;  // units of a warp; `longer` warps have one more
  int warps;

  /// block_warps must be a compile-time constant.
  __device__ __forceinline__ Share(const Rows& rows, const int (&borders)[2], unsigned block_warps,
                                   int cluster_log2)
      : first_strip(borders[0]),
        last_strip(borders[1]),
        first_unit(rows.unit_of(first_strip)),
        warps(block_warps << cluster_log2) {
    const int units = rows.unit_of(last_strip) - first_unit;
    each = static_cast<int>(static_cast<unsigned>(units) / block_warps >> cluster_log2);
    longer = units - each * warps;
  }

  /// First unit of a warp, counted from first_unit.
  __device__ __forceinline__ int begin(int number) const { return number * each + min(number, longer); }

  /// The warp whose run holds a unit. All lanes of a warp call it.
  __device__ __forceinline__ int warp_of(int unit, int lane) const {
    int begun = 0;
    for (int first = 0; first < warps; first += 32)
      begun += __popc(__ballot_sync(~0u, first + lane < warps && begin(first + lane) <= unit));
    return begun - 1;
  }
};

/// One unit: where it lies in W and X, and which strip it adds to.
struct Unit {
  int w_row = 0;  // its first row of [blocks * bm, bn]
  int col = 0;
  int strip = -1;
};

/// Finds unit `index` of all units; each lane may pass another. The block rows [first_row, end_row) must hold
/// it.
__device__ __forceinline__ Unit find_unit(const Params& params, const Rows& rows, int index, int first_row,
                                          int end_row) {
  // Binary search for the last block row that begins at or before the unit.
  int low = first_row, high = end_row - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if ((rows.crow[middle] << rows.strips_log2) <= index) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  const int first = rows.crow[low], length = rows.length(low);
  const int in_row = index - (first << rows.strips_log2);
  const int strip = (in_row >= length) + (in_row >= 2 * length) + (in_row >= 3 * length);
  const int block = first + in_row - strip * length;
  return {((block << rows.strips_log2) + strip) * kStrip, ptx::ld_global(params.col + block),
          (low << rows.strips_log2) + strip};
}

}  // namespace sparseloom::kernels::cuda::decode90
