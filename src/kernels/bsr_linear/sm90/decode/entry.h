// The entry of decode and decode_x_in_shared, and the instances of decode, one translation unit for each
// dtype so that they compile in parallel. cuda/rows.h has the contract of entries.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "kernels/args.h"
#include "kernels/bsr_linear/sm80/decode/entry.h"

namespace sparseloom::kernels::cuda {

/// Forward of small batches on Hopper (compute capability 9.0 only), with the stored blocks divided evenly:
/// bf16 and f16, at most kHopperDecodeRows block rows. Takes blocks of 32, 64 and 128 in any pairing with m
/// <= kDecodeTokens and a multiple of 8 columns; or blocks of 16 x 16 with m <= kXInSharedTokens, if an
/// eighth of the columns of up to 32 tokens fits into x_in_shared_bytes of shared memory. Operands are
/// aligned and some block is stored.
inline constexpr int kHopperDecodeRows = 8192;
inline constexpr int kXInSharedTokens = 256;
/// What the ring of W and the row pointers leave for X. tokens: 8, 16 or 32; of 8 the masks of columns are
/// longer.
constexpr int x_in_shared_bytes(int tokens) { return (tokens <= 8 ? 95 : 96) * 1024; }
int sm90_decode(const MatmulArgs& args, const Schedule& schedule) noexcept;

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

/// Whether the kernels' 32-bit counts hold these sizes.
constexpr bool counts_fit(std::int64_t rows, std::int64_t cols, BlockShape block, std::int64_t blocks) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max() / 2;
  const std::int64_t block_rows = (rows + block.rows - 1) / block.rows,
                     strips = std::max<std::int64_t>(block.rows / 32, 1);
  return std::max(rows, cols) <= kMost && (blocks + block_rows) * strips <= kMost &&
         blocks * block.rows <= kMost;
}

namespace x_in_shared {

inline constexpr int kBox = 64;            // columns of X in 128 bytes, a row of a box
inline constexpr int kPassBlockRows = 64;  // that a cluster multiplies while X stays

/// Columns of a thread block of a cluster.
constexpr std::int64_t range_of(std::int64_t cols, int cluster) {
  return ((cols + cluster - 1) / cluster + kBox - 1) / kBox * kBox;
}

/// Number of clusters that divide the block rows of one group of tokens among them, if `all` run at once.
constexpr std::int64_t clusters_of(int all, std::int64_t groups, std::int64_t block_rows) {
  return std::clamp<std::int64_t>(all / groups, 1, block_rows);
}

}  // namespace x_in_shared

/// Blocks of 32, 64 and 128 on either side.
int launch_bf16(const MatmulArgs& args, const Schedule& schedule) noexcept;
int launch_f16(const MatmulArgs& args, const Schedule& schedule) noexcept;

}  // namespace decode90

}  // namespace sparseloom::kernels::cuda
