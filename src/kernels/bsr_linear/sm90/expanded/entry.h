// The entry of sm90_expanded, its tiles as the row and the launch see them, and the instances of
// kernel.cuh, one per translation unit so that they compile in parallel. cuda/rows.h has the contract of
// entries.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernels/args.h"

namespace sparseloom::kernels::cuda {

/// Forward and dX of bf16 and f16, of at least one token, block sides of 8 to 64, X and values aligned to
/// 16 bytes. The schedule's tile_m and split_k (the number of shares) are those of expanded::size_of.
int sm90_expanded(const MatmulArgs& args, const Schedule& schedule) noexcept;

namespace expanded {

// A tile has kTileOutputs outputs and steps through K tiles of kKTile positions. The kMost constants size
// shared memory: the masks of K tiles, and the cut of tiles into shares.
inline constexpr int kTileOutputs = 256, kKTile = 64, kMostKTiles = 512, kMostOutTiles = 512,
                     kMostShares = 256;
// Outputs of a group; one warp expands its blocks.
inline constexpr int kGroup = 64;

/// How a product is tiled.
struct Size {
  int tokens;               // tokens of a tile
  int token_tiles, shares;  // the grid
  int out_tiles, k_tiles;
  std::size_t workspace;  // bytes
};

/// Tokens per token tile: tiles have nearly the same size.
inline int tile_tokens(std::int64_t m, int token_tiles) {
  return static_cast<int>(((m - 1) / token_tiles / 16 + 1) * 16);
}

/// m > 0. outputs and depth are the extents along the outputs and the reduction.
inline Size size_of(std::int64_t m, std::int64_t outputs, std::int64_t depth, int multiprocessors) {
  Size size{};
  size.tokens = m <= 64 ? 64 : 128;
  size.token_tiles = static_cast<int>((m + size.tokens - 1) / size.tokens);
  size.out_tiles = static_cast<int>((outputs + kTileOutputs - 1) / kTileOutputs);
  size.k_tiles = static_cast<int>((depth + kKTile - 1) / kKTile);
  // A tile's first share adds the others' sums one after the other, and each costs as much as some K tiles:
  // more shares than this would take longer to add up than they save.
  constexpr double kKTilesToAdd = 3;
  const int most = std::max(1, static_cast<int>(size.out_tiles * std::sqrt(size.k_tiles / kKTilesToAdd)));
  size.shares = std::clamp(multiprocessors / size.token_tiles, 1, std::min(most, kMostShares));
  // A tile of sums, and a flag per consumer warp.
  size.workspace = std::size_t{4} * size.token_tiles * size.shares *
                   (size.tokens * kTileOutputs + 8 * sizeof(std::uint64_t) / 4);
  return size;
}

int forward_bf16(const MatmulArgs& args, const Schedule& schedule) noexcept;
int forward_f16(const MatmulArgs& args, const Schedule& schedule) noexcept;
int dx_bf16(const MatmulArgs& args, const Schedule& schedule) noexcept;
int dx_f16(const MatmulArgs& args, const Schedule& schedule) noexcept;

}  // namespace expanded

}  // namespace sparseloom::kernels::cuda
