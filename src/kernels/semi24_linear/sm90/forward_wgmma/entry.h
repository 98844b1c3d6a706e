// The entries of forward_wgmma, one for each instance of kernel.cuh. Each is a translation unit of its own.
#pragma once

#include "kernels/semi24_linear/product.h"

namespace sparseloom::kernels::cuda {

namespace semi24 {

/// The tiles, rows of W x tokens, in the order of the schedule's variants.
struct TileShape {
  int rows, tokens;
};
inline constexpr TileShape kTiles[] = {{256, 192}, {256, 128}, {128, 128}};
inline constexpr int kTileCount = 3;

int forward_bf16_256x192(const Semi24Product& product) noexcept;
int forward_bf16_256x128(const Semi24Product& product) noexcept;
int forward_bf16_128x128(const Semi24Product& product) noexcept;
int forward_f16_256x192(const Semi24Product& product) noexcept;
int forward_f16_256x128(const Semi24Product& product) noexcept;
int forward_f16_128x128(const Semi24Product& product) noexcept;

}  // namespace semi24

/// Forward by wgmma.sp and TMA (compute capability 9.0 only) of bf16 and f16, with tile kTiles[tile]. cols is
/// a multiple of 16 and rows of 8; x, values, out and residual are aligned to 16 bytes, and so are their
/// rows.
int sm90_semi24_wgmma(const Semi24Product& product, int tile) noexcept;

}  // namespace sparseloom::kernels::cuda
