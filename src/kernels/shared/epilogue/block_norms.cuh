// An epilogue that reduces a tile of sums to the norms of its blocks. A tile is divided into cells of 8 x 8:
// every block side is a multiple of 8, so one instance serves all block shapes.
//
//   registers   The sums of an mma or wgmma fragment that belong to a cell lie in all lanes of one warp, two
//               in each (ptx/mma.cuh). join_lanes reduces all cells of a warp at once.
//   shared      join_cells reduces the tile's cells to its blocks, and writes their norms.
//
// All sums are in a fixed order, so that the same operands give the same bits.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "sparseloom/layout.h"

namespace sparseloom::kernels::cuda {

/// fmaxf would drop a NaN.
__device__ __forceinline__ float max_or_nan(float a, float b) {
  float most;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(most) : "f"(a), "f"(b));
  return most;
}

/// The summands (l2: squares), or the largest magnitude.
template <BlockNorm kNorm>
struct NormSum {
  static __device__ __forceinline__ float of(float a, float b) {
    if constexpr (kNorm == BlockNorm::l2) return fmaf(a, a, b * b);
    return join(fabsf(a), fabsf(b));
  }
  static __device__ __forceinline__ float join(float a, float b) {
    if constexpr (kNorm == BlockNorm::max) return max_or_nan(a, b);
    return a + b;
  }
  static __device__ __forceinline__ float root(float sum) {
    if constexpr (kNorm == BlockNorm::l2) return sqrtf(sum);
    return sum;
  }
};

/// Reduces kCount cells, a multiple of 32, over the lanes: lane l ends with cells l * kCount / 32 and those
/// after it, in cells[0 ..]. In each round a lane passes half of its cells to the lane that keeps them, so
/// kCount - kCount / 32 shuffles suffice; reducing each cell separately would take five times as many.
template <BlockNorm kNorm, int kCount, int kLaneBit = 16, int kAll>
__device__ __forceinline__ void join_lanes(float (&cells)[kAll]) {
  if constexpr (kLaneBit > 0) {
    constexpr int kHalf = kCount / 2;
    const bool keeps_upper = (threadIdx.x & kLaneBit) != 0;
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      const float kept = keeps_upper ? cells[i + kHalf] : cells[i],
                  passed = keeps_upper ? cells[i] : cells[i + kHalf];
      cells[i] = NormSum<kNorm>::join(kept, __shfl_xor_sync(0xffffffff, passed, kLaneBit));
    }
    join_lanes<kNorm, kHalf, kLaneBit / 2>(cells);
  }
}

/// The output of a kernel, and the blocks' sides as log2 of their cells.
struct NormGrid {
  float* norms;
  std::int32_t block_rows, block_cols;
  int row_shift, col_shift;
};

/// Reduces the cells of a tile to blocks and writes their norms. The tile's first block is (block_row,
/// block_col). All kThreads threads call it, after a barrier that follows the last write to `cells`; `sync`
/// is a barrier of these threads. Another barrier is needed before the cells are written again.
template <BlockNorm kNorm, int kThreads, int kRows, int kCols, class Sync>
__device__ __forceinline__ void join_cells(float (&cells)[kRows][kCols], const NormGrid& grid,
                                           std::int64_t block_row, std::int64_t block_col, int thread,
                                           Sync sync) {
  using Sum = NormSum<kNorm>;
  // Down the rows of cells, a thread per column, so that lanes read different banks.
  const int blocks_down = kRows >> grid.row_shift, height = 1 << grid.row_shift;
  for (int i = thread; i < blocks_down * kCols; i += kThreads) {
    const int row = i / kCols << grid.row_shift, col = i % kCols;
    float sum = cells[row][col];
#pragma unroll 4
    for (int r = 1; r < height; ++r) sum = Sum::join(sum, cells[row + r][col]);
    cells[row][col] = sum;
  }
  sync();
  // Across the columns.
  const int blocks_across = kCols >> grid.col_shift, width = 1 << grid.col_shift;
  for (int i = thread; i < blocks_down * blocks_across; i += kThreads) {
    const int down = i / blocks_across, across = i % blocks_across;
    const float* from = &cells[down << grid.row_shift][across << grid.col_shift];
    float sum = from[0];
#pragma unroll 4
    for (int c = 1; c < width; ++c) sum = Sum::join(sum, from[c]);
    const std::int64_t row = block_row + down, col = block_col + across;
    if (row < grid.block_rows && col < grid.block_cols)
      grid.norms[row * grid.block_cols + col] = Sum::root(sum);
  }
}

}  // namespace sparseloom::kernels::cuda
