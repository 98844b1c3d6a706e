// The entries of bsr_conv's forward_mma and dw_mma; and the instances of forward_mma/kernel.cuh, one per
// translation unit so that they compile in parallel, with their tiles. Tiles have fewer stages or thread
// blocks per multiprocessor than bsr_linear's, since the table of pixels needs shared memory beside the ring.
// bsr_linear/cuda/rows.h has the contract of entries.
#pragma once

#include "kernels/args.h"
#include "kernels/bsr_conv/walk.h"
#include "kernels/bsr_linear/sm80/mma/forward/tiles.h"

namespace sparseloom::kernels::cuda {

/// Forward and dX on tensor cores: bf16, f16, and f32 with args.tf32. args is the product of W's channels,
/// whose tokens are pixels: a and out are [pixels, channels], and values are [blocks][taps][bm, bn]. Supports
/// fewer than 2^31 pixels and any stride, padding, dilation, block and alignment. dx too adds the bias,
/// applies the activation and adds the residual. schedule: tile_n is the block's side along the outputs.
int sm80_conv_forward(const MatmulArgs& args, const conv::Shape& shape, const Schedule& schedule) noexcept;

namespace conv_forward {

int conv_forward_bf16(const MatmulArgs& args, const conv::Shape& shape, const Schedule& schedule) noexcept;
int conv_forward_f16(const MatmulArgs& args, const conv::Shape& shape, const Schedule& schedule) noexcept;
int conv_forward_tf32(const MatmulArgs& args, const conv::Shape& shape, const Schedule& schedule) noexcept;
int conv_dx_bf16(const MatmulArgs& args, const conv::Shape& shape, const Schedule& schedule) noexcept;
int conv_dx_f16(const MatmulArgs& args, const conv::Shape& shape, const Schedule& schedule) noexcept;
int conv_dx_tf32(const MatmulArgs& args, const conv::Shape& shape, const Schedule& schedule) noexcept;

}  // namespace conv_forward

}  // namespace sparseloom::kernels::cuda

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

/// The tile for blocks of this side along the outputs, or null.
constexpr const mma::forward::TileShape* tile_of(int block_row) {
  for (const mma::forward::TileShape& tile : kTiles) {
    if (tile.block_row == block_row) return &tile;
  }
  return nullptr;
}

}  // namespace sparseloom::kernels::cuda::conv_forward

namespace sparseloom::kernels::cuda {

/// dW on tensor cores: bf16, f16, and f32 with args.tf32. args is the product of W's channels, whose tokens
/// are pixels: a = dY [args.m, rows], b = X [pixels, cols], and out is [blocks][taps][bm, bn]. The workspace
/// holds partial sums if the schedule cuts the pixels.
int sm80_conv_dw(const MatmulArgs& args, const conv::Shape& shape, const Schedule& schedule) noexcept;

}  // namespace sparseloom::kernels::cuda
