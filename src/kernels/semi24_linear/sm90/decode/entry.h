// The entries of decode, one for each instance of kernel.cuh.
#pragma once

#include "kernels/semi24_linear/product.h"

namespace sparseloom::kernels::cuda {

namespace semi24 {

/// The most tokens of each instance, and the most thread blocks that may share a tile of 128 rows.
inline constexpr int kDecodeTokens[] = {16, 32, 64}, kDecodeRows = 128, kMostRanks = 4;

int decode_bf16_16(const Semi24Product& product, int ranks) noexcept;
int decode_bf16_32(const Semi24Product& product, int ranks) noexcept;
int decode_bf16_64(const Semi24Product& product, int ranks) noexcept;
int decode_f16_16(const Semi24Product& product, int ranks) noexcept;
int decode_f16_32(const Semi24Product& product, int ranks) noexcept;
int decode_f16_64(const Semi24Product& product, int ranks) noexcept;

}  // namespace semi24

/// Forward of at most 64 tokens by wgmma.sp and TMA (compute capability 9.0 only), bf16 and f16. `ranks`
/// thread blocks (1, 2 or 4, at most one for each 128 columns) share a tile. cols is a multiple of 16; x
/// and values are aligned to 16 bytes, and so are the rows of x.
int sm90_semi24_decode(const Semi24Product& product, int ranks) noexcept;

}  // namespace sparseloom::kernels::cuda
