// dW of few tokens: out[i][r, c] = sum over tokens t of dY[t, row(i) * bm + r] * X[t, col[i] * bn + c] for
// every stored block i.
//
//   stored blocks   [0][1][2][3] [4][5][6][7] [8] ..     A tile is as many blocks as any other tile, wherever
//   block rows       0  0  0  1   1  1  1  1   4         block rows begin, or one of the tiles of a block.
//
//   shared memory   dY [tokens][rows of each block row among them]    X [tokens][gathered columns]
//
// With few tokens the results are more bytes than the operands, and the operands come from L2. So nothing is
// pipelined inside a thread block: it copies all tokens, multiplies, stores and ends. Other thread blocks on
// the multiprocessor hide its latencies. Each warp multiplies cells of 32 x 32 results, and stores 16 bytes
// per lane. On sm_90 the thread blocks of a cluster divide a tile's tokens, if these are many
// (cluster_sum.cuh).
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/bsr_linear/sm80/dw_small/cell.cuh"
#include "kernels/bsr_linear/sm80/dw_small/cluster_sum.cuh"
#include "kernels/bsr_linear/sm80/dw_small/find.cuh"
#include "kernels/bsr_linear/sm80/dw_small/slab.cuh"
#include "kernels/bsr_linear/sm80/dw_small/store.cuh"
#include "kernels/shared/ptx/griddepcontrol.cuh"

namespace sparseloom::kernels::cuda::dw_small {

/// Prefetches this thread block's share of an operand's cache lines into L2.
__device__ __forceinline__ void prefetch(const void* matrix, std::int64_t stride, std::int64_t columns,
                                         int m) {
  const int lines = static_cast<int>((columns + 63) / 64);
  const unsigned step = gridDim.x * kThreads;
  for (unsigned i = blockIdx.x * kThreads + threadIdx.x; i < static_cast<unsigned>(lines * m); i += step)
    ptx::prefetch_line_l2(static_cast<const std::uint16_t*>(matrix) + i / lines * stride + i % lines * 64);
}

/// Copies the thread block's tokens of the tile's columns and rows, and waits for them. `left` and `top`: the
/// tile's corner in its blocks; `first_token`: the thread block's first of the m tokens.
__device__ __forceinline__ void load(const Params& params, const TileBlocks& of_tile, const Slab& dy,
                                     const Slab& x, int left, int top, int first_token, int m) {
  {
    const int gathered = left + x.chunk_of_thread() * 8, block = gathered >> params.log2_bn;
    const std::int64_t column = (std::int64_t{__shfl_sync(~0u, of_tile.column, block)} << params.log2_bn) +
                                (gathered & ((1 << params.log2_bn) - 1));
    if (block < of_tile.count)
      copy_chunks(x, params.x, params.x_stride, params.cols, column, first_token, m, params.slice,
                  params.x_chunks);
  }
  {
    const int gathered = dy.chunk_of_thread() * 8, block = gathered >> params.log2_tile_rows;
    const bool leads = __shfl_sync(~0u, of_tile.leader, block) == block && block < of_tile.count;
    const std::int64_t column = (__shfl_sync(~0u, of_tile.row, block) << params.log2_bm) + top +
                                (gathered & ((1 << params.log2_tile_rows) - 1));
    if (leads)
      copy_chunks(dy, params.dy, params.dy_stride, params.rows, column, first_token, m, params.slice,
                  params.dy_chunks);
  }
  ptx::cp_async_commit();
  ptx::cp_async_wait<0>();
  __syncthreads();
}

/// sums += a cell's products over the tokens from `token` to `end` of the slabs. `row`: the cell's first row
/// in the tile; `column`: its first among the columns of the tile's blocks; `slab_column`: the same in the
/// slab of X.
template <class Config>
__device__ __forceinline__ void multiply_cell(Sums<Config>& sums, const Params& params,
                                              const TileBlocks& of_tile, const Slab& dy, const Slab& x,
                                              int row, int column, int slab_column, int token, int end,
                                              int lane) {
  const int block = column >> params.log2_bn;
  int row_chunk[Config::kBlocks], leader[Config::kBlocks];
  bool same = true;
#pragma unroll
  for (int j = 0; j < Config::kBlocks; ++j) {
    leader[j] = __shfl_sync(~0u, of_tile.leader, block + j);
    row_chunk[j] = ((leader[j] << params.log2_tile_rows) + row) / 8;
    same = same && leader[j] == leader[0];
  }
  if (same) {
    multiply<Config, true>(sums, dy, x, row_chunk, slab_column / 8, token, end, lane);
  } else {
    multiply<Config, false>(sums, dy, x, row_chunk, slab_column / 8, token, end, lane);
  }
}

template <class Config>
__device__ __forceinline__ void store(const Params& params, const TileBlocks& of_tile, const CellPlace& place,
                                      const Sums<Config>& sums, int lane) {
  if (params.accumulate) {
    add_sums<Config>(params, of_tile, place, sums, lane);
  } else {
    store_rounded<Config>(params, of_tile, place, sums, lane);
  }
}

template <class Config, bool kCluster>
__global__ void __launch_bounds__(kThreads, 4) dw_small_kernel(const __grid_constant__ Params params) {
  extern __shared__ __align__(128) std::byte shared[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int rank = kCluster ? static_cast<int>(blockIdx.x) & ((1 << params.log2_cluster) - 1) : 0;
  const unsigned tile = kCluster ? blockIdx.x >> params.log2_cluster : blockIdx.x;
  const std::int64_t first = (std::int64_t{tile} >> params.log2_block_tiles) * params.tile_blocks;
  const int block_tile = static_cast<int>(tile) & ((1 << params.log2_block_tiles) - 1);
  // The tile's corner in its blocks.
  const int top = (block_tile & ((1 << params.log2_row_tiles) - 1)) << params.log2_tile_rows;
  const int left = block_tile >> params.log2_row_tiles << params.log2_tile_columns;

  if (params.prefetch) {
    if (warp == 0) ptx::prefetch_line_l2(params.crow + guessed_row(params, first) + lane);
    if (threadIdx.x == 0) ptx::prefetch_line_l2(params.col + first);
    prefetch(params.dy, params.dy_stride, params.rows, params.m);
    prefetch(params.x, params.x_stride, params.cols, params.m);
  }
  ptx::wait_for_earlier_kernels();
  ptx::let_next_kernel_begin();

  const TileBlocks of_tile = find_blocks(params, first, lane);
  const int log2_blocks = 31 - __clz(params.tile_blocks);
  const Slab dy{shared, params.log2_tile_rows + log2_blocks - 3};
  const Slab x{shared + dy.bytes(params.slice), params.log2_tile_columns - 3};
  const int first_token = rank * params.slice;
  load(params, of_tile, dy, x, left, top, first_token, params.m);

  constexpr int kLog2CellRows = Config::kRows == 32 ? 5 : Config::kRows == 16 ? 4 : 3;
  const int log2_heights = params.log2_tile_rows - kLog2CellRows;
  const int cells = 1 << (log2_heights + params.log2_tile_columns - 5);
  const auto row_of = [&](int cell) { return (cell & ((1 << log2_heights) - 1)) << kLog2CellRows; };
  const auto column_of = [&](int cell) { return cell >> log2_heights << 5; };
  const auto stored = [&](int cell) { return (left + column_of(cell)) >> params.log2_bn < of_tile.count; };
  if constexpr (kCluster) {
    // If a tile has fewer cells than there are warps, several warps divide a cell's tokens.
    const int cell = warp & (cells - 1), steps = params.slice / 16 * cells;
    const int token = warp / cells * steps / kWarps * 16, end = (warp / cells + 1) * steps / kWarps * 16;
    Sums<Config> sums = {};
    if (stored(cell))
      multiply_cell<Config>(sums, params, of_tile, dy, x, row_of(cell), left + column_of(cell),
                            column_of(cell), token, end, lane);
    __syncthreads();  // all warps have read the slabs, which the sums overwrite
    const ClusterSums<Config> all{reinterpret_cast<float4*>(shared), cells, 1 << params.log2_cluster};
    all.put(sums, warp, lane);
    all.add_warps();
    ptx::cluster_sync();
    for (int strip = warp << params.log2_cluster | rank; strip < cells * Config::kHeights;
         strip += kWarps << params.log2_cluster) {
      const int of = strip / Config::kHeights, height = strip % Config::kHeights;
      if (!stored(of)) continue;
      Sums<Strip<Config>> sum;
      all.get(sum, of, height, lane);
      store<Strip<Config>>(params, of_tile, {top + row_of(of) + 16 * height, left + column_of(of)}, sum,
                           lane);
    }
    ptx::cluster_sync();  // other thread blocks may still read these sums
  } else {
    for (int cell = warp; cell < cells; cell += kWarps) {
      if (!stored(cell)) continue;
      Sums<Config> sums = {};
      multiply_cell<Config>(sums, params, of_tile, dy, x, row_of(cell), left + column_of(cell),
                            column_of(cell), 0, params.slice, lane);
      store<Config>(params, of_tile, {top + row_of(cell), left + column_of(cell)}, sums, lane);
    }
  }
}

}  // namespace sparseloom::kernels::cuda::dw_small
