// The entry of decode and decode_x_in_shared, and the instances of decode, one translation unit for each
// dtype so that they compile in parallel. cuda/rows.h has the contract of entries.
#pragma once

#include <algorithm>

#include "kernels/args.h"
#include "kernels/bsr_linear/sm80/decode/entry.h"
#include "kernels/bsr_linear/sm90/operands/cannot_take.h"

namespace sparseloom::kernels::cuda {

/// Forward of small batches on Hopper (compute capability 9.0 only), with the stored blocks divided evenly:
/// bf16 and f16, at most kHopperDecodeRows block rows. Takes blocks of 32, 64 and 128 in any pairing with m
/// <= kDecodeTokens and a multiple of 8 columns; or blocks of 16 x 16 with m <= kXInSharedTokens, if an
/// eighth of the columns of 32 tokens fits into kXInSharedBytes of shared memory. What the copy engine cannot
/// address goes to an sm_80 kernel.
inline constexpr int kHopperDecodeRows = 8192;
inline constexpr int kXInSharedTokens = 256;
inline constexpr int kXInSharedBytes = 96 * 1024;
int sm90_decode(const MatmulArgs& args) noexcept;

namespace decode90 {

/// Blocks of 16 x 16, for which other kernels serve the entries than for wider ones.
inline bool is_narrow(const MatmulArgs& args) { return args.index.block == BlockShape{16, 16}; }

/// Whether the entries take a call. narrow_tokens: the most tokens with blocks of 16 x 16.
inline bool takes(const MatmulArgs& args, int narrow_tokens) {
  const bool narrow = is_narrow(args), halves = args.dtype == DType::bf16 || args.dtype == DType::f16;
  return args.m >= 1 && args.m <= (narrow ? narrow_tokens : kDecodeTokens) &&
         args.direction == Direction::forward && halves &&
         (narrow || std::min(args.index.block.rows, args.index.block.cols) >= 32);
}

/// Blocks of 32, 64 and 128 on either side.
int launch_bf16(const MatmulArgs& args) noexcept;
int launch_f16(const MatmulArgs& args) noexcept;

}  // namespace decode90

}  // namespace sparseloom::kernels::cuda
