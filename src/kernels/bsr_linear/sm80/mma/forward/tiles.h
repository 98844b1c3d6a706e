// The tiles that mma/forward is compiled for, as numbers: schedule.cpp chooses one of them, and launch.cuh
// derives the kernel's types from them.
//
// The bandwidth from L2 to the multiprocessors bounds them; it does not depend on the rows' length (measured
// in all tiles from 16 x 128 to 128 x 128; tensor cores would allow more). So the bytes per product decide:
// block row x tokens outputs cost block row + tokens, and blocks of 64 and 128 take 64 x 64 warp tiles, which
// reuse operands in registers most.
#pragma once

#include <cstddef>

namespace sparseloom::kernels::cuda::mma::forward {

/// tokens x block_row outputs, computed by warps_m x warps_n warps, with chunk_bytes of the reduction in each
/// of the ring's stages.
struct TileShape {
  int block_row, tokens, chunk_bytes, warps_m, warps_n, stages, blocks_per_sm;

  /// sizeof(SharedStorage) of the tile: the ring and a flag for each stage, in whole units of 128 bytes.
  constexpr std::size_t shared_bytes() const {
    const int bytes = stages * ((tokens + block_row) * chunk_bytes + static_cast<int>(sizeof(int)));
    return static_cast<std::size_t>((bytes + 127) / 128 * 128);
  }
};

/// For each side of a block along the outputs, the widest tile first. The others are for small batches and
/// for GPUs with less shared memory.
inline constexpr TileShape kTiles[] = {
    {8, 128, 128, 4, 1, 4, 3},    //
    {16, 256, 128, 8, 1, 3, 2},   //
    {16, 128, 128, 4, 1, 4, 3},   //
    {32, 256, 128, 8, 1, 3, 2},   //
    {32, 64, 128, 4, 1, 4, 4},    //
    {64, 256, 64, 4, 1, 4, 2},    // 128 bytes of k would leave only two stages
    {64, 64, 128, 2, 2, 4, 3},    //
    {128, 256, 128, 4, 2, 4, 1},  //
    {128, 128, 128, 2, 2, 3, 2},  //
    {128, 64, 128, 2, 2, 4, 2},
};
inline constexpr int kTileCount = sizeof kTiles / sizeof *kTiles;

/// Whether a tile is compiled for teams, which are clusters whose thread blocks share a block row: the widest
/// tiles of wide blocks. Narrower block rows have enough thread blocks without teams.
constexpr bool has_teams(const TileShape& tile) { return tile.block_row >= 64 && tile.tokens == 256; }
inline constexpr int kMostSegments = 4;  // most thread blocks of a team

}  // namespace sparseloom::kernels::cuda::mma::forward
