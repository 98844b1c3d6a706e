// The schedules of forward and dX by wgmma: the tiles of each thread block, and the instance.
#include <algorithm>
#include <cstdint>

#include "kernels/bsr_linear/sm90/wgmma/forward/row_parts.h"
#include "kernels/bsr_linear/verb.h"
#include "kernels/shared/cost/cost_terms.h"

namespace sparseloom::kernels::cuda::wgmma::forward {
namespace {

/// Sets the block rows of a tile, the blocks of a K tile along the reduction, and the tiles of each thread
/// block. The rest of the schedule stays empty.
Schedule walk_of(const Problem& p, const plan::Machine& machine, const TileShape& tile) {
  const bool dx = p.direction == Direction::dx;
  const auto number_of = [](std::int64_t size, int side) {
    return static_cast<unsigned>(std::clamp<std::int64_t>((size + side - 1) / side, 1, 1 << 15));
  };
  const unsigned m_tiles = number_of(p.m, tile.tokens),
                 groups = number_of(dx ? p.cols : p.rows, tile.outputs);
  const auto places =
      static_cast<unsigned>(std::max(1, machine.cuda.multiprocessors) * tile.per_multiprocessor);
  const auto bytes = static_cast<std::int64_t>(size_of(p.dtype));
  const std::int64_t value_bytes = tile.value_bytes > 0 ? tile.value_bytes : bytes;
  const unsigned chunk =
      chunk_of(m_tiles, groups, places,
               {p.blocks * p.block.rows * p.block.cols * value_bytes, p.m * (dx ? p.rows : p.cols) * bytes,
                static_cast<std::int64_t>(machine.cuda.l2_bytes)});
  Schedule schedule;
  schedule.groups = {std::max(1, tile.outputs / (dx ? p.block.cols : p.block.rows)), 1, 1};
  if (chunk < groups) schedule.chunk_n = static_cast<std::int32_t>(chunk);
  // Narrow tiles that share a multiprocessor take many waves and do not keep step.
  schedule.grid = static_cast<std::int32_t>(std::min(m_tiles * groups, places));
  schedule.stride_n = 1;
  if (tile.per_multiprocessor == 1) {
    const Walk walk = walk_over(m_tiles, groups, places);
    schedule.grid = static_cast<std::int32_t>(walk.grid);
    schedule.stride_n = static_cast<std::int32_t>(walk.stride);
    if (chunk == groups && tile.outputs > kNarrowTile.outputs)
      schedule.groups.step = static_cast<int>(walk.step);
  }
  // Two blocks of 32 share a K tile.
  if (size_of(p.dtype) == 2 && (dx ? p.block.rows : p.block.cols) == 32 && !narrow_k_tiles(p))
    schedule.groups.span = 2;
  return schedule;
}

}  // namespace

Schedule schedule_of(const Problem& p, const plan::Machine& machine, const TileShape& tile) {
  const bool dx = p.direction == Direction::dx;
  const int side = dx ? p.block.cols : p.block.rows;
  const auto size = static_cast<int>(size_of(p.dtype));
  Schedule schedule = walk_of(p, machine, tile);
  schedule.tile_m = tile.tokens, schedule.tile_n = tile.outputs;
  // A K tile has 128 bytes; few blocks of 32 have K tiles of their own size.
  schedule.tile_k = (narrow_k_tiles(p) ? 64 : 128) / size;
  schedule.swap_ab = tile.tokens == kWideTile.tokens && side >= 64 && size == 2;
  // With swap-AB and without a residual, forward may store a tile during the next one's products, but not
  // with an activation.
  schedule.stores_at_end = schedule.swap_ab && !dx && !p.residual && p.activation != Activation::none;
  return schedule;
}

Schedule scaled_schedule_of(const ScaledProblem& p, const plan::Machine& machine, const TileShape& tile) {
  const Problem same = forward_of(p);
  const bool promotes = !p.fast_accum;
  Schedule schedule = walk_of(same, machine, tile);
  // Two K tiles of 8-bit blocks share a stage and, with promotion, a sum before it is rounded to fp32. The
  // tile's block rows decide which two, so they keep their order.
  if (promotes) schedule.groups = {0, 1};
  schedule.tile_m = tile.tokens, schedule.tile_n = tile.outputs;
  schedule.tile_k = p.block.cols == 64 ? 64 : 128;  // blocks of 64 have K tiles of their own size
  schedule.swap_ab =
      tile.tokens == kWideTile.tokens && p.block.rows >= 64 && !promotes && size_of(p.out) == 2;
  // Blocks of 64 measured faster without deferred stores if tiles are long, and slower at low densities.
  const bool long_tiles = p.block.rows < 128 && p.blocks * 20 > cells_of(same) * 3;
  schedule.stores_at_end = schedule.swap_ab && (p.activation != Activation::none || long_tiles);
  return schedule;
}

}  // namespace sparseloom::kernels::cuda::wgmma::forward
