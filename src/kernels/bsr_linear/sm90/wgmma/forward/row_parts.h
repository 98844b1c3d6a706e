// Shared by the rows of sm90_wgmma and those that run its kernel on prepared operands.
#pragma once

#include "kernels/bsr_linear/sm90/wgmma/forward/entry.h"
#include "kernels/shared/cost/cost_terms.h"
#include "plan/machine.h"
#include "sparseloom/plan.h"
#include "sparseloom/refusal.h"

namespace sparseloom::kernels::cuda::wgmma::forward {

/// The number of blocks of W if none were absent.
inline std::int64_t cells_of(const Problem& p) {
  const auto count = [](std::int64_t size, int side) { return (size + side - 1) / side; };
  return count(p.rows, p.block.rows) * count(p.cols, p.block.cols);
}

/// Whether 16-bit blocks of side 32 use K tiles of their own size (see Narrowed in element.cuh). That pays if
/// few blocks have a stored neighbour.
inline bool narrow_k_tiles(const Problem& p) {
  return size_of(p.dtype) == 2 && p.block.rows == 32 && p.block.cols == 32 &&
         static_cast<double>(p.blocks) < 0.15 * static_cast<double>(cells_of(p));
}

/// Refuses forward and dX if they have more tiles than the kernel can count.
Refusal refuse_tiles(const Problem& problem, const TileShape& tile);
/// Predicted microseconds of any direction. Blocks below 32 on a side are merged into units first.
double predict_us(const Problem& problem, const plan::Machine& machine, bool narrow);

/// The schedule of forward or dX with this tile: the tiles of each thread block, and the instance (tile, K
/// tile, swap-AB and epilogue).
Schedule schedule_of(const Problem& problem, const plan::Machine& machine, const TileShape& tile);
Schedule scaled_schedule_of(const ScaledProblem& problem, const plan::Machine& machine,
                            const TileShape& tile);

/// Predicts f16 and bf16. Blocks below 32 on a side are merged into units first.
double predict_16_bit_us(const Problem& problem, const Device& device, bool narrow);

/// Predicts f32 (TF32) and 8-bit operands. `out_size`: bytes of an output; `promotes`: 8-bit sums are added
/// up in fp32.
double predict_32_and_8_bit_us(const Problem& problem, const Device& device, bool narrow, double out_size,
                               bool promotes);

}  // namespace sparseloom::kernels::cuda::wgmma::forward
