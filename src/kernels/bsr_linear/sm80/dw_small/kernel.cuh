// dW of few tokens: out[i][r, c] = sum over tokens t of dY[t, row(i) * bm + r] * X[t, col[i] * bn + c] for
// every stored block i.
//
//   stored blocks   [0][1][2][3] [4][5][6][7] [8] ..     A thread block takes as many blocks as any other,
//   block rows       0  0  0  1   1  1  1  1   4         wherever block rows begin, or a part of one block.
//
//   shared memory   dY [tokens][rows of each block row among them]    X [tokens][gathered columns]
//
// With few tokens the results are more bytes than what is read for them, and the reads come from L2. So
// nothing is pipelined inside a thread block: it copies all tokens, multiplies, stores and ends. The thread
// blocks beside it on the multiprocessor cover its latencies. Each warp multiplies cells of 32 x 32 results,
// and stores 16 bytes by a lane.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/bsr_linear/sm80/dw_small/cell.cuh"
#include "kernels/bsr_linear/sm80/dw_small/find.cuh"
#include "kernels/bsr_linear/sm80/dw_small/slab.cuh"
#include "kernels/bsr_linear/sm80/dw_small/store.cuh"
#include "kernels/shared/ptx/griddepcontrol.cuh"

namespace sparseloom::kernels::cuda::dw_small {

/// Asks for this thread block's share of an operand's cache lines into L2.
__device__ __forceinline__ void prefetch(const void* matrix, std::int64_t stride, std::int64_t columns,
                                         int m) {
  const int lines = static_cast<int>((columns + 63) / 64);
  const unsigned step = gridDim.x * kThreads;
  for (unsigned i = blockIdx.x * kThreads + threadIdx.x; i < static_cast<unsigned>(lines * m); i += step)
    ptx::prefetch_line_l2(static_cast<const std::uint16_t*>(matrix) + i / lines * stride + i % lines * 64);
}

template <class Config>
__global__ void __launch_bounds__(kThreads, 4) dw_small_kernel(const __grid_constant__ Params params) {
  extern __shared__ __align__(128) std::byte shared[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const std::int64_t first = (std::int64_t{blockIdx.x} >> params.log2_parts) * params.tile_blocks;
  const int part = static_cast<int>(blockIdx.x) & ((1 << params.log2_parts) - 1);
  // The tile's corner in its blocks.
  const int top = (part & ((1 << params.log2_row_parts) - 1)) << params.log2_tile_rows;
  const int left = part >> params.log2_row_parts << params.log2_tile_columns;

  if (params.prefetch) {
    if (warp == 0) ptx::prefetch_line_l2(params.crow + guessed_row(params, first) + lane);
    if (threadIdx.x == 0) ptx::prefetch_line_l2(params.col + first);
    prefetch(params.dy, params.dy_stride, params.rows, params.m);
    prefetch(params.x, params.x_stride, params.cols, params.m);
  }
  ptx::wait_for_earlier_kernels();
  ptx::let_next_kernel_begin();

  const Share share = find_share(params, first, lane);
  const int tokens = (params.m + 15) / 16 * 16;
  const int log2_blocks = 31 - __clz(params.tile_blocks);
  const Slab dy{shared, params.log2_tile_rows + log2_blocks - 3};
  const Slab x{shared + dy.bytes(tokens), params.log2_tile_columns - 3};
  {
    const int gathered = left + x.chunk_of_thread() * 8, block = gathered >> params.log2_bn;
    const std::int64_t column = (std::int64_t{__shfl_sync(~0u, share.column, block)} << params.log2_bn) +
                                (gathered & ((1 << params.log2_bn) - 1));
    if (block < share.blocks)
      copy_chunks(x, params.x, params.x_stride, params.cols, column, params.m, tokens, params.x_chunks);
  }
  {
    const int gathered = dy.chunk_of_thread() * 8, block = gathered >> params.log2_tile_rows;
    const bool leads = __shfl_sync(~0u, share.leader, block) == block && block < share.blocks;
    const std::int64_t column = (__shfl_sync(~0u, share.row, block) << params.log2_bm) + top +
                                (gathered & ((1 << params.log2_tile_rows) - 1));
    if (leads)
      copy_chunks(dy, params.dy, params.dy_stride, params.rows, column, params.m, tokens, params.dy_chunks);
  }
  ptx::cp_async_commit();
  ptx::cp_async_wait<0>();
  __syncthreads();

  constexpr int kLog2CellRows = Config::kRows == 32 ? 5 : Config::kRows == 16 ? 4 : 3;
  const int log2_heights = params.log2_tile_rows - kLog2CellRows;
  const int cells = 1 << (log2_heights + params.log2_tile_columns - 5);
  for (int cell = warp; cell < cells; cell += kWarps) {
    const int row = (cell & ((1 << log2_heights) - 1)) << kLog2CellRows;
    const int column = cell >> log2_heights << 5;
    const CellPlace place{top + row, left + column};
    const int block = place.column >> params.log2_bn;
    if (block >= share.blocks) continue;
    int row_chunk[Config::kBlocks], leader[Config::kBlocks];
    bool same = true;
#pragma unroll
    for (int j = 0; j < Config::kBlocks; ++j) {
      leader[j] = __shfl_sync(~0u, share.leader, block + j);
      row_chunk[j] = ((leader[j] << params.log2_tile_rows) + row) / 8;
      same = same && leader[j] == leader[0];
    }
    Sums<Config> sums = {};
    if (same) {
      multiply<Config, true>(sums, dy, x, row_chunk, column / 8, tokens, lane);
    } else {
      multiply<Config, false>(sums, dy, x, row_chunk, column / 8, tokens, lane);
    }
    if (params.accumulate) {
      add_sums<Config>(params, share, place, sums, lane);
    } else {
      store_rounded<Config>(params, share, place, sums, lane);
    }
  }
}

}  // namespace sparseloom::kernels::cuda::dw_small
