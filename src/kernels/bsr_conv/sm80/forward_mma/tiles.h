// The tiles that forward_mma of bsr_conv is compiled for, one for each side of a block along the outputs. A
// stage and two or three thread blocks of a multiprocessor have less room than in bsr_linear's tiles: the
// table of pixels lies beside the ring.
#pragma once

#include "kernels/bsr_linear/sm80/mma/forward/tiles.h"

namespace sparseloom::kernels::cuda::conv_forward {

inline constexpr mma::forward::TileShape kTiles[] = {
    {8, 128, 128, 4, 1, 3, 3},   //
    {16, 128, 128, 4, 1, 3, 3},  //
    {32, 128, 128, 4, 1, 3, 2},  //
    {64, 128, 128, 2, 2, 3, 2},  //
    {128, 128, 128, 2, 2, 3, 1},
};
inline constexpr int kTileCount = sizeof kTiles / sizeof *kTiles;

/// Bytes of shared memory of a tile's thread block: the ring, and the tables of pixels and taps beside it.
inline constexpr int kTableBytes = 7 * 1024;
constexpr int bytes_of_thread_block(const mma::forward::TileShape& tile) {
  return tile.stages * (tile.tokens + tile.block_row) * tile.chunk_bytes + kTableBytes;
}

/// The tile for blocks of this side along the outputs; null: there is none.
constexpr const mma::forward::TileShape* tile_of(int block_row) {
  for (const mma::forward::TileShape& tile : kTiles) {
    if (tile.block_row == block_row) return &tile;
  }
  return nullptr;
}

}  // namespace sparseloom::kernels::cuda::conv_forward
