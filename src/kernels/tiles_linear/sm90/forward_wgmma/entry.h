// The entries of forward_wgmma, one for each instance of kernel.cuh.
#pragma once

#include "kernels/tiles_linear/product.h"

namespace sparseloom::kernels::cuda {

namespace tiles {

/// The tiles, rows of W x tokens, in the order of the schedule's variants. Rejected: 256 x 192, up to 5 %
/// faster at 8192 tokens, whose epilogue spills.
struct TileShape {
  int rows, tokens;
};
inline constexpr TileShape kTiles[] = {{256, 128}, {128, 128}, {128, 64}};
inline constexpr int kTileCount = 3;

int forward_bf16_256x128(const TilesProduct& product) noexcept;
int forward_bf16_128x128(const TilesProduct& product) noexcept;
int forward_bf16_128x64(const TilesProduct& product) noexcept;
int forward_f16_256x128(const TilesProduct& product) noexcept;
int forward_f16_128x128(const TilesProduct& product) noexcept;
int forward_f16_128x64(const TilesProduct& product) noexcept;

}  // namespace tiles

/// Forward by wgmma, wgmma.sp and TMA (compute capability 9.0 only), with tile kTiles[tile]. x, values, out
/// and residual are aligned to 16 bytes, and so are their rows; rows is a multiple of 8.
int sm90_tiles_wgmma(const TilesProduct& product, int tile) noexcept;

}  // namespace sparseloom::kernels::cuda
