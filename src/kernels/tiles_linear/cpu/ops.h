// The kernels of tiles on the CPU: the panel kernels' driver (bsr_linear/cpu/panel_run.h) over units of 64 x
// 64, whose strips multiply both kinds.
#pragma once

#include <cstddef>

#include "kernels/bsr_linear/cpu/panel.h"
#include "sparseloom/plan.h"
#include "sparseloom/tiles.h"

namespace sparseloom::kernels::cpu {

extern const PanelOps kAvx2Tiles, kAvx2TilesDx;  // of f32, f16 and bf16; they differ in their count of runs

/// The product as one of blocks of 64 x 64; `units`: the stored ones.
Problem tiles_problem(Direction direction, DType dtype, std::int64_t m, std::int64_t rows, std::int64_t cols,
                      std::int64_t units);
/// Bytes of the workspace of a product.
std::size_t tiles_workspace(const PanelOps& ops, const Problem& problem);
/// args.index stays empty.
void run_tiles(const PanelOps& ops, const MatmulArgs& args, const TilesView& w, const Executor& executor);

}  // namespace sparseloom::kernels::cpu
