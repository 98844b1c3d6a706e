// How sm90_decode cuts a product: lines of 32 outputs to clusters, their units to warps. Included by
// decode.cuh.
//
//   blocks of the rows, strip by strip      |0 0 0 0 0|1 1 1|  |3 3 3 3 3 3 3 3|4|5 5 ..     line (line 2 is
//   empty) warps of a cluster                       a a b b c c d d     a a b b c c d d ..           unit
//
// A cluster takes whole lines: those that begin in its share of the cost, which is one for every unit and one
// for every line. Inside it every warp takes equally many units, one after the other. So a heavy row occupies
// a cluster, not a multiprocessor.
#pragma once

#include "kernels/cuda/ptx/griddepcontrol.cuh"
#include "kernels/cuda/ptx/ld_global.cuh"
#include "kernels/cuda/ptx/sm90/bulk.cuh"
#include "kernels/cuda/sm90/decode_config.cuh"

namespace sparseloom::kernels::cuda::decode90 {

/// Asks L2 for a warp's part of the even cut of all values, at most kMost bytes: what it reads first, give or
/// take a row.
template <int kMost>
__device__ __forceinline__ void prefetch_values(const Params& params, int number) {
  const auto bytes = static_cast<std::uint32_t>(params.warp_bytes < kMost ? params.warp_bytes : kMost);
  if (bytes > 0)
    ptx::bulk_prefetch_l2(static_cast<const char*>(params.values) + number * params.warp_bytes, bytes);
}

/// Asks L2 for the row pointers, and for a warp's part of the columns if all rows were alike. All lanes of a
/// warp.
__device__ __forceinline__ void prefetch_index(const Params& params, int number, int lane) {
  constexpr int kLineWords = 32;
  for (int row = threadIdx.x * kLineWords; row <= params.block_rows; row += blockDim.x * kLineWords)
    ptx::prefetch_line_l2(params.crow + row);
  const std::int64_t first = number * params.warp_blocks,
                     last = min(first + params.warp_blocks, std::int64_t{params.blocks}) - 1;
  for (std::int64_t block = first + lane * kLineWords; block <= last; block += 32 * kLineWords)
    ptx::prefetch_line_l2(params.col + block);
}

/// The row pointers, and what follows from them.
struct Rows {
  const std::int32_t* crow;  // shared memory
  int count;
  int strips_log2;

  __device__ __forceinline__ int lines() const { return count << strips_log2; }
  __device__ __forceinline__ int length(int row) const { return crow[row + 1] - crow[row]; }
  /// Of all lines of the rows before this one.
  __device__ __forceinline__ int cost_before(int row) const { return (crow[row] + row) << strips_log2; }

  /// Units before a line.
  __device__ __forceinline__ int unit_of(int line) const {
    const int row = line >> strips_log2, strip = line & ((1 << strips_log2) - 1);
    const int first = crow[row] << strips_log2;
    return strip == 0 ? first : first + strip * length(row);
  }
};

/// First line of `cluster`: where the cost before it is at least its number of shares. The thread that has
/// the row before it writes it to `border`; the others may read it behind a __syncthreads. All threads of a
/// thread block together.
__device__ __forceinline__ void find_border(const Params& params, const Rows& rows, int cluster, int clusters,
                                            int* border) {
  // cost * cluster / clusters, rounded down; share_step is 2^32 / clusters, rounded up.
  const auto cost = static_cast<int>(__umulhi(static_cast<unsigned>(rows.cost_before(rows.count)),
                                              static_cast<unsigned>(cluster) * params.share_step));
  if (cluster == clusters || cost == 0) {
    if (threadIdx.x == 0) *border = cluster == clusters ? rows.lines() : 0;
    return;
  }
  for (int row = threadIdx.x; row < rows.count; row += blockDim.x) {
    const int left = cost - rows.cost_before(row), each = rows.length(row) + 1;
    if (left <= 0 || left > each << rows.strips_log2) continue;
    *border = (row << rows.strips_log2) + 1 + (left > each) + (left > 2 * each) +
              (left > 3 * each);  // at most four strips
  }
}

/// What a cluster does: units in runs, one for each of its warps, the longer ones first. A warp's number
/// counts through the thread blocks first, so that the longer runs spread over them.
struct Share {
  int first_line, last_line;  // one behind
  int first_unit;
  int each, longer;  // units of a warp; so many warps have one more
  int warps;

  /// block_warps: a constant.
  __device__ __forceinline__ Share(const Rows& rows, const int (&borders)[2], unsigned block_warps,
                                   int cluster_log2)
      : first_line(borders[0]),
        last_line(borders[1]),
        first_unit(rows.unit_of(first_line)),
        warps(block_warps << cluster_log2) {
    const int units = rows.unit_of(last_line) - first_unit;
    each = static_cast<int>(static_cast<unsigned>(units) / block_warps >> cluster_log2);
    longer = units - each * warps;
  }

  __device__ __forceinline__ int begin(int number) const { return number * each + min(number, longer); }

  /// Whose run a unit is in. All lanes of a warp together.
  __device__ __forceinline__ int warp_of(int unit, int lane) const {
    int begun = 0;
    for (int first = 0; first < warps; first += 32)
      begun += __popc(__ballot_sync(~0u, first + lane < warps && begin(first + lane) <= unit));
    return begun - 1;
  }
};

/// One unit: where it lies in W and X, and what it adds to.
struct Unit {
  int w_row = 0;  // its first row of [blocks * bm, bn]
  int col = 0;
  int line = -1;
};

/// Unit `index` of all; every lane its own. [first_row, end_row): block rows that hold it.
__device__ __forceinline__ Unit find_unit(const Params& params, const Rows& rows, int index, int first_row,
                                          int end_row) {
  int low = first_row, high = end_row - 1;  // the last row that begins at or before it
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
  return {((block << rows.strips_log2) + strip) * kLine, ptx::ld_global(params.col + block),
          (low << rows.strips_log2) + strip};
}

}  // namespace sparseloom::kernels::cuda::decode90
