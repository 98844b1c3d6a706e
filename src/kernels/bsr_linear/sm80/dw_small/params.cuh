// The kernel parameters of dw_small.
#pragma once

#include <cstdint>

namespace sparseloom::kernels::cuda::dw_small {

struct Params {
  const void* dy;                    // [m, rows]
  const void* x;                     // [m, cols]
  std::int64_t dy_stride, x_stride;  // elements
  int m, slice;                      // tokens, and tokens per thread block of a cluster
  std::int64_t rows, cols;
  const std::int32_t* crow;
  const std::int32_t* col;
  std::int64_t block_rows, blocks;
  float rows_per_block;  // block rows / blocks
  int log2_bm, log2_bn;
  int log2_tile_rows, log2_tile_columns;
  int log2_row_tiles, log2_block_tiles;  // tiles of a block: along its rows, and in all
  int tile_blocks;
  int log2_cluster;          // thread blocks that divide the tokens of a tile
  void* out;                 // [blocks, bm, bn] of the dtype, or fp32
  bool dy_chunks, x_chunks;  // 16-byte chunks of the rows are aligned: cp.async; otherwise by elements
  bool out_chunks;           // out is aligned for the widest store
  bool accumulate;           // out is fp32 and added to
  bool ragged;               // blocks reach beyond the matrix
  bool prefetch;             // the grid is small: thread blocks prefetch the operands before they wait
};

}  // namespace sparseloom::kernels::cuda::dw_small
