// The entries of decode, one for each instance of kernel.cuh.
#pragma once

#include "kernels/tiles_linear/product.h"

namespace sparseloom::kernels::cuda {

namespace tiles {

/// The tiles of a thread block, rows of W x tokens, and how many thread blocks share a multiprocessor.
struct DecodeShape {
  int rows, tokens, at_once;
};
inline constexpr DecodeShape kDecodeTiles[] = {{64, 16, 2},  {64, 32, 2},   {64, 64, 2},
                                               {128, 64, 2}, {128, 128, 1}, {256, 128, 1}};
inline constexpr int kDecodeTileCount = 6;
/// The most thread blocks that divide a tile.
inline constexpr int kMostRanks = 4;

int decode_bf16_64x16(const TilesProduct& product, int ranks) noexcept;
int decode_bf16_64x32(const TilesProduct& product, int ranks) noexcept;
int decode_bf16_64x64(const TilesProduct& product, int ranks) noexcept;
int decode_bf16_128x64(const TilesProduct& product, int ranks) noexcept;
int decode_bf16_128x128(const TilesProduct& product, int ranks) noexcept;
int decode_bf16_256x128(const TilesProduct& product, int ranks) noexcept;
int decode_f16_64x16(const TilesProduct& product, int ranks) noexcept;
int decode_f16_64x32(const TilesProduct& product, int ranks) noexcept;
int decode_f16_64x64(const TilesProduct& product, int ranks) noexcept;
int decode_f16_128x64(const TilesProduct& product, int ranks) noexcept;
int decode_f16_128x128(const TilesProduct& product, int ranks) noexcept;
int decode_f16_256x128(const TilesProduct& product, int ranks) noexcept;

}  // namespace tiles

/// Forward by wgmma, wgmma.sp and TMA (compute capability 9.0 only), with tile kDecodeTiles[tile]. `ranks`
/// thread blocks (1, 2 or 4, at most one per 64 columns) divide a tile. x and values are aligned to 16
/// bytes, and so are the rows of x.
int sm90_tiles_decode(const TilesProduct& product, int tile, int ranks) noexcept;

}  // namespace sparseloom::kernels::cuda
