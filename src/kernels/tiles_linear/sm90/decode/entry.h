// The entries of decode, one for each instance of kernel.cuh.
#pragma once

#include "kernels/tiles_linear/product.h"

namespace sparseloom::kernels::cuda {

namespace tiles {

/// The most tokens of each instance, the rows of a tile, and the most thread blocks that divide it.
inline constexpr int kDecodeTokens[] = {16, 32, 64}, kDecodeRows = 64, kMostRanks = 4;

int decode_bf16_16(const TilesProduct& product, int ranks) noexcept;
int decode_bf16_32(const TilesProduct& product, int ranks) noexcept;
int decode_bf16_64(const TilesProduct& product, int ranks) noexcept;
int decode_f16_16(const TilesProduct& product, int ranks) noexcept;
int decode_f16_32(const TilesProduct& product, int ranks) noexcept;
int decode_f16_64(const TilesProduct& product, int ranks) noexcept;

}  // namespace tiles

/// Forward of at most 64 tokens by wgmma, wgmma.sp and TMA (compute capability 9.0 only). `ranks` thread
/// blocks (1, 2 or 4, at most one per 64 columns) divide a tile. x and values are aligned to 16 bytes, and so
/// are the rows of x.
int sm90_tiles_decode(const TilesProduct& product, int ranks) noexcept;

}  // namespace sparseloom::kernels::cuda
