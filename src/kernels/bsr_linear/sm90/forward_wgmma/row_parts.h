// What the rows of sm90_wgmma share with those that run its kernel on prepared operands.
#pragma once

#include "kernels/bsr_linear/sm90/forward_wgmma/entry.h"
#include "plan/machine.h"
#include "sparseloom/plan.h"
#include "sparseloom/refusal.h"

namespace sparseloom::kernels::cuda::wgmma_dds {

/// narrow_k_tiles of a problem, as a plan sees it.
inline bool narrow_k_tiles(const Problem& p) {
  const auto count = [](std::int64_t size, int side) { return (size + side - 1) / side; };
  return size_of(p.dtype) == 2 &&
         narrow_k_tiles(p.block, p.blocks, count(p.rows, p.block.rows) * count(p.cols, p.block.cols));
}

/// Refuses more tiles of forward and dX than the kernel counts.
Refusal refuse_tiles(const Problem& problem, const TileShape& tile);
/// Blocks below 32 on a side are merged into units first.
double predict_us(const Problem& problem, const plan::Machine& machine, bool narrow);

/// The block rows of a tile, the blocks in a K tile along the reduction, and which tiles a thread block
/// takes.
BlockRowGroups block_row_groups(const Problem& problem, const plan::Machine& machine, const TileShape& tile);

}  // namespace sparseloom::kernels::cuda::wgmma_dds
