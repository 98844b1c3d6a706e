// The entry of sm90_shares, its cut as the row and the launch see it, and the instances of kernel.cuh, one
// per translation unit so that they compile in parallel. cuda/rows.h has the contract of entries.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/args.h"

namespace sparseloom::kernels::cuda {

/// Forward and dX of bf16 and f16, of at least one token, block sides of 16 to 128, X and values aligned to
/// 16 bytes. The schedule's tile_m, tile_n and split_k (the number of shares) are those of shares::size_of.
int sm90_shares(const MatmulArgs& args, const Schedule& schedule) noexcept;

namespace shares {

/// The most tokens of a product: beyond, X is read from L2 too often.
inline constexpr std::int64_t kMostTokens = 256;

struct Size {
  int tokens, strip;        // tokens and outputs of a tile
  int token_tiles, shares;  // the grid
  std::size_t workspace;    // bytes
};

/// m > 0. `outputs` and `side` are extents along the outputs; `k_side` is a block's extent along the
/// reduction. wide: a strip may have 128 outputs, which TMA's swizzle of W allows in forward only. X is then
/// read once for them, if there are enough blocks for each multiprocessor. Beyond 64 tokens that gains
/// nothing (79 us for 81): the consumer warps, two to a scheduler, wait for each other's results, whatever is
/// read.
inline Size size_of(std::int64_t m, std::int64_t outputs, std::int64_t blocks, int side, int k_side,
                    bool wide, int multiprocessors) {
  Size size{};
  size.strip = std::min(side, wide && m <= 64 && blocks >= 4 * std::int64_t{multiprocessors} ? 128 : 64);
  size.tokens = m <= 32 ? 32 : m <= 64 ? 64 : 128;
  size.token_tiles = static_cast<int>((m + size.tokens - 1) / size.tokens);
  const std::int64_t strips = (outputs + side - 1) / side * (side / size.strip);
  const std::int64_t units = strips + blocks * (side / size.strip) * std::max(k_side / 64, 1);
  size.shares = static_cast<int>(std::clamp<std::int64_t>(std::max(multiprocessors, 1) / size.token_tiles, 1,
                                                          std::max<std::int64_t>(units, 1)));
  // A tile of sums, and a flag per thread block.
  size.workspace = std::size_t{4} * size.token_tiles * size.shares * (size.tokens * size.strip + 2);
  return size;
}

int forward_bf16(const MatmulArgs& args, const Schedule& schedule) noexcept;
int forward_f16(const MatmulArgs& args, const Schedule& schedule) noexcept;
int dx_bf16(const MatmulArgs& args, const Schedule& schedule) noexcept;
int dx_f16(const MatmulArgs& args, const Schedule& schedule) noexcept;

}  // namespace shares

}  // namespace sparseloom::kernels::cuda
