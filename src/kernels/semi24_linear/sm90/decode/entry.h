// The entries of decode, one for each instance of kernel.cuh.
#pragma once

#include "kernels/semi24_linear/product.h"

namespace sparseloom::kernels::cuda {

namespace semi24 {

/// The most tokens of each instance, the rows of a tile, and the most thread blocks that divide it.
inline constexpr int kDecodeTokens[] = {16, 32, 64}, kDecodeRows = 128, kMostRanks = 4;

int decode_bf16_16(const Semi24Product& product, int ranks) noexcept;
int decode_bf16_32(const Semi24Product& product, int ranks) noexcept;
int decode_bf16_64(const Semi24Product& product, int ranks) noexcept;
int decode_f16_16(const Semi24Product& product, int ranks) noexcept;
int decode_f16_32(const Semi24Product& product, int ranks) noexcept;
int decode_f16_64(const Semi24Product& product, int ranks) noexcept;
int decode_i8_16(const Semi24Product& product, int ranks) noexcept;
int decode_i8_32(const Semi24Product& product, int ranks) noexcept;
int decode_i8_64(const Semi24Product& product, int ranks) noexcept;
int decode_e4m3_16(const Semi24Product& product, int ranks) noexcept;
int decode_e4m3_32(const Semi24Product& product, int ranks) noexcept;
int decode_e4m3_64(const Semi24Product& product, int ranks) noexcept;

}  // namespace semi24

/// Forward of at most 64 tokens by wgmma.sp and TMA (compute capability 9.0 only). `ranks` thread blocks (1,
/// 2 or 4, at most one per 128 columns, or 256 with 8 bits) divide a tile. cols is a multiple of 16, or of 32
/// with 8 bits; x and values are aligned to 16 bytes, and so are the rows of x. e4m3 sums are promoted even
/// if args.fast_accum allows less, since DRAM limits the kernel.
int sm90_semi24_decode(const Semi24Product& product, int ranks) noexcept;

}  // namespace sparseloom::kernels::cuda
