// The entries of forward_mma, one for each instance of kernel.cuh.
#pragma once

#include "kernels/semi24_linear/product.h"

namespace sparseloom::kernels::cuda {

namespace semi24_mma {

/// A tile of four warps, rows of W x tokens; a K tile is `depth` columns of W, of which each warp along K
/// multiplies 64.
struct TileShape {
  int rows, tokens, depth;
};
inline constexpr TileShape kTiles[] = {{128, 64, 64}, {64, 32, 128}, {32, 16, 256}};
inline constexpr int kTileCount = 3;

int forward_bf16_128x64(const Semi24Product& product) noexcept;
int forward_bf16_64x32(const Semi24Product& product) noexcept;
int forward_bf16_32x16(const Semi24Product& product) noexcept;
int forward_f16_128x64(const Semi24Product& product) noexcept;
int forward_f16_64x32(const Semi24Product& product) noexcept;
int forward_f16_32x16(const Semi24Product& product) noexcept;

}  // namespace semi24_mma

/// Forward by mma.sp of bf16 and f16 with tile kTiles[tile], for any size and alignment.
int sm80_semi24_mma(const Semi24Product& product, int tile) noexcept;

}  // namespace sparseloom::kernels::cuda
