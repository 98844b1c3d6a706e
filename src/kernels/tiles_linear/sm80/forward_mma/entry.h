// The entries of forward_mma, one for each instance of kernel.cuh.
#pragma once

#include "kernels/tiles_linear/product.h"

namespace sparseloom::kernels::cuda {

namespace tiles_mma {

/// A tile of four warps, rows of W x tokens; a K tile is `depth` columns of W, of which each warp along K
/// multiplies 64.
struct TileShape {
  int rows, tokens, depth;
};
inline constexpr TileShape kTiles[] = {{128, 64, 64}, {64, 32, 128}, {32, 16, 256}};
inline constexpr int kTileCount = 3;

int forward_bf16_128x64(const TilesProduct& product) noexcept;
int forward_bf16_64x32(const TilesProduct& product) noexcept;
int forward_bf16_32x16(const TilesProduct& product) noexcept;
int forward_f16_128x64(const TilesProduct& product) noexcept;
int forward_f16_64x32(const TilesProduct& product) noexcept;
int forward_f16_32x16(const TilesProduct& product) noexcept;

}  // namespace tiles_mma

/// Forward by mma and mma.sp of bf16 and f16 with tile kTiles[tile]. x and values are aligned to 16 bytes,
/// and so are the rows of x.
int sm80_tiles_mma(const TilesProduct& product, int tile) noexcept;

}  // namespace sparseloom::kernels::cuda
