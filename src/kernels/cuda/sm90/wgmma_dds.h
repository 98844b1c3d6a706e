// The instances of wgmma_dds.cuh, one per translation unit, so that two cores compile them side by side.
// Contract: launch.h.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/args.h"
#include "kernels/cuda/sm90/cannot_take.h"
#include "sparseloom/plan.h"

namespace sparseloom::kernels::cuda::wgmma_dds {

/// Whether 16-bit blocks of side 32 have slabs of their own (Narrowed): where few lie next to one another.
inline bool narrow_slabs(BlockShape block, std::int64_t blocks, std::int64_t grid) {
  return block.rows == 32 && block.cols == 32 &&
         static_cast<double>(blocks) < 0.15 * static_cast<double>(grid);
}

/// Bytes of the stored values and of the dense operand that they multiply, and what L2 holds.
struct WalkBytes {
  std::int64_t values = 0, dense = 0, l2 = 0;
};

/// How many groups of outputs see all panels of tokens before the next groups do, `places` tiles at a time:
/// all of them where half of L2 holds the values (the rest is for the panels under way and the outputs), or
/// where to read the dense operand anew for every chunk is more than to read the values anew for every few
/// panels. Dx of blocks of 128 at .5 over a reduction of 16384: 762 us in three chunks, 737 in one. Else as
/// many as a third of L2 holds: forward over 16384 outputs, blocks of 128 / 64 at .5, takes 707 / 797 us so,
/// 727 / 813 by halves of L2 and 714 / 805 by quarters.
inline unsigned chunk_of(unsigned panels, unsigned groups, unsigned places, const WalkBytes& bytes) {
  const std::int64_t l2 = std::max(bytes.l2, std::int64_t{16} << 20);
  if (bytes.values <= l2 / 2) return groups;
  const std::int64_t chunks = std::min<std::int64_t>((3 * bytes.values + l2 - 1) / l2, groups);
  const std::int64_t rounds = (std::int64_t{panels} * groups + places - 1) / places;
  if ((chunks - 1) * bytes.dense >= (rounds - 1) * bytes.values) return groups;
  return static_cast<unsigned>((groups + chunks - 1) / chunks);
}

/// How one thread block for each multiprocessor walks over panels x groups tiles (wgmma_dds_walk.cuh): in the
/// order of panels, of which panel p begins with group p * stride, thread block i takes tiles i, i + grid,
/// and so on.
struct Walk {
  unsigned grid = 0, stride = 1;
  /// A thread block meets every step-th group, and all of those, where they are one chunk; 1: or close to all
  /// groups alike.
  unsigned step = 1;
};

/// No more thread blocks than the number of rounds needs: 128 for 1024 tiles and 132 multiprocessors. Whole
/// panels at a time then stay in step: measured 2 to 3 % faster in forward, 7 to 14 % in dx of few blocks.
inline Walk walk_over(unsigned panels, unsigned groups, unsigned multiprocessors) {
  const unsigned tiles = panels * groups, rounds = (tiles + multiprocessors - 1) / multiprocessors;
  Walk walk;
  walk.grid = (tiles + rounds - 1) / rounds;
  walk.stride = std::max(1u, groups / panels);
  const unsigned step = walk.grid / groups * walk.stride;
  if (walk.grid % groups == 0 && step > 0 && groups % step == 0) walk.step = step;
  return walk;
}

/// Wide tiles, one to a multiprocessor, or narrow ones, two: which of them is faster depends on how many
/// there are, and both are candidates of their own.
enum class TileSize { wide, narrow };

struct TileShape {
  int tokens, outputs;
  int value_bytes = 0;  // of each stored value, as it is read; 0: as it is stored
};
inline constexpr TileShape kWideTile{256, 128}, kNarrowTile{128, 64};
inline constexpr TileShape kSplitTile{128, 128, 3 * 2}, kNarrowSplitTile{128, 64, 3 * 2};  // of fp32 in parts

/// The same of a problem, as the plan sees it.
inline bool narrow_slabs(const Problem& p) {
  const auto count = [](std::int64_t size, int side) { return (size + side - 1) / side; };
  return size_of(p.dtype) == 2 &&
         narrow_slabs(p.block, p.blocks, count(p.rows, p.block.rows) * count(p.cols, p.block.cols));
}

int forward_bf16(const MatmulArgs& args, TileSize size) noexcept;
int forward_f16(const MatmulArgs& args, TileSize size) noexcept;
int forward_plus_bf16(const MatmulArgs& args, TileSize size) noexcept;  // with a residual
int forward_plus_f16(const MatmulArgs& args, TileSize size) noexcept;
int forward_tf32(const MatmulArgs& args, TileSize size) noexcept;
int forward_e4m3_bf16(const MatmulArgs& args, TileSize size) noexcept;
int forward_e4m3_f32(const MatmulArgs& args, TileSize size) noexcept;
int forward_e4m3_fast_bf16(const MatmulArgs& args, TileSize size) noexcept;  // with args.fast_accum
int forward_e4m3_fast_f32(const MatmulArgs& args, TileSize size) noexcept;
int dx_bf16(const MatmulArgs& args, TileSize size) noexcept;
int dx_f16(const MatmulArgs& args, TileSize size) noexcept;
int dx_tf32(const MatmulArgs& args, TileSize size) noexcept;

}  // namespace sparseloom::kernels::cuda::wgmma_dds
