// The entry of dw_small, its launches by dtype, and its division of the results into tiles, on the host:
// row.cpp puts it into the schedule. cuda/rows.h has the contract of entries.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/args.h"
#include "sparseloom/pattern.h"

namespace sparseloom::kernels::cuda {

/// dW of bf16 and f16 by the schedule's tile and cluster, with at most dw_small::kMostSlice tokens for each
/// thread block of a cluster. Clusters of more than one need the code for sm_90.
int sm80_dw_small(const MatmulArgs& args, const Schedule& schedule) noexcept;

namespace dw_small {

int launch_bf16(const MatmulArgs& args, const Schedule& schedule) noexcept;
int launch_f16(const MatmulArgs& args, const Schedule& schedule) noexcept;

}  // namespace dw_small
}  // namespace sparseloom::kernels::cuda

namespace sparseloom::kernels::cuda::dw_small {

/// The tokens of a thread block are in shared memory at once.
constexpr int kMostSlice = 512;
/// Thread blocks of a cluster, which divide the tokens of a tile.
constexpr int kMostCluster = 8;
constexpr std::int64_t kMostTokens = std::int64_t{kMostCluster} * kMostSlice;
// Results per thread block if there are many thread blocks: a block of 128 x 128, which reads twice what it
// writes at 128 tokens.
constexpr int kManyResults = 32 * 1024;
// With fewer thread blocks per multiprocessor tiles are smaller, since the latency of one tile dominates.
constexpr int kEnough = 2;
// Three thread blocks then fit on a multiprocessor: one loads while another multiplies and a third stores.
constexpr int kSharedBytes = 74 * 1024;
// A warp holds the sums of 32 x 32 results.
constexpr int kCellSide = 32;
constexpr int kWarps = 4;
// A thread copies the same 16-byte chunk of every n-th token.
constexpr int kMostColumns = 128 * 8;
// Each lane holds one block of the tile.
constexpr int kMostBlocks = 32;

/// A tile has `rows` rows of a block, and `columns` columns of one block, or of columns / bn consecutive
/// stored blocks, which may cross block rows.
struct Tile {
  int rows = 0, columns = 0;
};

/// The tokens per thread block of a cluster, in steps of an MMA; the last ones may have fewer.
constexpr int slice_of(std::int64_t m, int cluster) {
  return static_cast<int>(((m + cluster - 1) / cluster + 15) / 16 * 16);
}
constexpr int blocks_of(const Tile& tile, BlockShape block) { return std::max(1, tile.columns / block.cols); }
constexpr int parts_of(const Tile& tile, BlockShape block) {
  return (block.rows / tile.rows) * std::max(1, block.cols / tile.columns);
}

constexpr int cells_of(const Tile& tile) {
  return std::max(1, tile.rows / kCellSide) * (tile.columns / kCellSide);
}

/// Each block of a tile has room for dY of its own block row. In a cluster, the sums of at least one MMA's 16
/// rows of each warp then overwrite the tokens.
constexpr int shared_bytes(const Tile& tile, BlockShape block, std::int64_t m, int cluster) {
  const int slabs = (tile.rows * blocks_of(tile, block) + tile.columns) * slice_of(m, cluster) * 2;
  return cluster == 1 ? slabs
                      : std::max(slabs, kWarps * std::clamp(tile.rows, 16, kCellSide) * kCellSide * 4);
}

constexpr std::int64_t thread_blocks(const Tile& tile, BlockShape block, std::int64_t blocks) {
  const std::int64_t tile_blocks = blocks_of(tile, block);
  return (blocks + tile_blocks - 1) / tile_blocks * parts_of(tile, block);
}

/// The tile for a product whose m tokens a cluster divides. A warp of a cluster has one cell.
constexpr Tile choose_tile(BlockShape block, std::int64_t blocks, std::int64_t m, int cluster,
                           int multiprocessors) {
  Tile tile{block.rows, std::max(block.cols, kCellSide)};
  const auto columns_fit = [&](int columns) {
    const int stored = columns / block.cols;
    return tile.rows * columns * 2 <= kManyResults && stored <= kMostBlocks && columns <= kMostColumns &&
           stored * tile.rows <= kMostColumns;
  };
  while (columns_fit(2 * tile.columns)) tile.columns *= 2;
  const std::int64_t enough = std::int64_t{kEnough} * std::max(1, multiprocessors);
  for (;;) {
    const bool many = cluster == 1 && thread_blocks(tile, block, blocks) >= enough;
    if (shared_bytes(tile, block, m, cluster) <= kSharedBytes && (many || cells_of(tile) <= kWarps))
      return tile;
    if (tile.columns > std::max<int>(block.cols, kCellSide)) {
      tile.columns /= 2;
    } else if (tile.rows > kCellSide && tile.rows >= tile.columns) {
      tile.rows /= 2;
    } else if (tile.columns > kCellSide) {
      tile.columns /= 2;
    } else {
      tile.rows /= 2;  // 8 rows and 32 columns fit for every block
    }
  }
}

}  // namespace sparseloom::kernels::cuda::dw_small
