// The entries of forward_wgmma, one for each instance of kernel.cuh. Each is a translation unit of its own.
#pragma once

#include "kernels/semi24_linear/product.h"

namespace sparseloom::kernels::cuda {

namespace semi24 {

/// The tiles, rows of W x tokens, in the order of the schedule's variants. Promoted sums need twice the
/// registers, too many for the first tile.
struct TileShape {
  int rows, tokens;
};
inline constexpr TileShape kTiles[] = {{256, 192}, {256, 128}, {128, 128}, {128, 64}};
inline constexpr int kTileCount = 4, kFirstPromotedTile = 1;

int forward_bf16_256x192(const Semi24Product& product) noexcept;
int forward_bf16_256x128(const Semi24Product& product) noexcept;
int forward_bf16_128x128(const Semi24Product& product) noexcept;
int forward_bf16_128x64(const Semi24Product& product) noexcept;
int forward_f16_256x192(const Semi24Product& product) noexcept;
int forward_f16_256x128(const Semi24Product& product) noexcept;
int forward_f16_128x128(const Semi24Product& product) noexcept;
int forward_f16_128x64(const Semi24Product& product) noexcept;
int forward_i8_256x192(const Semi24Product& product) noexcept;
int forward_i8_256x128(const Semi24Product& product) noexcept;
int forward_i8_128x128(const Semi24Product& product) noexcept;
int forward_i8_128x64(const Semi24Product& product) noexcept;
int forward_e4m3_fast_256x192(const Semi24Product& product) noexcept;  // with args.fast_accum
int forward_e4m3_fast_256x128(const Semi24Product& product) noexcept;
int forward_e4m3_fast_128x128(const Semi24Product& product) noexcept;
int forward_e4m3_fast_128x64(const Semi24Product& product) noexcept;
int forward_e4m3_256x128(const Semi24Product& product) noexcept;
int forward_e4m3_128x128(const Semi24Product& product) noexcept;
int forward_e4m3_128x64(const Semi24Product& product) noexcept;

}  // namespace semi24

/// Forward by wgmma.sp and TMA (compute capability 9.0 only), with tile kTiles[tile]. The rows of values are
/// multiples of 16 bytes: cols is a multiple of 16, or of 32 with 8 bits. x and values are aligned to 16
/// bytes, and so are their rows; out and residual too, with rows a multiple of 8, unless out is fp32.
int sm90_semi24_wgmma(const Semi24Product& product, int tile) noexcept;

}  // namespace sparseloom::kernels::cuda
