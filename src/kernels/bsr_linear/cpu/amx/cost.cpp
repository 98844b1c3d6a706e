// Predicts the time of a call on AMX tiles. The model is counted from the code, not fitted: its times are too
// low on a shared host, but its choice against dense was right in almost all cells of the table (the log has
// the figures). The rates were measured on a Sapphire Rapids core (2026-11-20): TDPBF16PS takes 16 cycles
// whatever the depth and columns, and 8.5 with 8 rows; tile loads from L2 reach three quarters of that rate;
// L3 gives 28 GB/s.
#include <algorithm>

#include "core/check.h"
#include "kernels/bsr_linear/cpu/amx/tile.h"
#include "kernels/shared/cost/cost_terms.h"

namespace sparseloom::kernels::cpu {
namespace {

using core::ceil_div;

constexpr double kFlopsPerCycle = 1024;  // 2 * 16 * 16 * 32 in 16 cycles; int8 twice that
constexpr double kDotCycles[2] = {16, 8.5};
// Cycles to load a row of a tile from L2 or a cold L1. 1.33 is the hardware's best. In a prototype of the
// inner loop, scattered blocks reached 44 % of the peak, which is two cycles.
constexpr double kRowCycles = 2;
constexpr double kBlockCycles = 12;  // addresses, prefetches, the last product's latency
constexpr double kOutCycles = 0.5, kPackCycles = 0.25, kTransposeCycles = 0.4;
constexpr double kOuterPackCycles = 0.4, kOuterOutCycles = 0.4;
constexpr double kSharedBytes = 28e9;  // per second and core, beyond L2
constexpr double kMacroTokens = 128;   // tokens that stay in L2 while the weights stream past

// The cycles of one step of depth of one set of sums: `high` tiles of A times `wide` tiles of B.
double step_cycles(int side, double b_rows, int high, int wide) {
  const double dots = high * wide * kDotCycles[side < kTileSide];
  return std::max(dots, kRowCycles * (high * side + wide * b_rows));
}

struct Work {
  double us;     // time on one thread
  double tasks;  // the number of tasks it is worth
};

Work strips(const Problem& p, double cycle) {
  const bool forward = p.direction == Direction::forward;
  const int element = static_cast<int>(size_of(p.dtype)), per_cell = 4 / element;
  const int output_block = forward ? p.block.rows : p.block.cols,
            depth_block = forward ? p.block.cols : p.block.rows;
  const int outputs = std::min(output_block, 2 * kTileSide), side = std::min(outputs, kTileSide),
            depth = std::min(depth_block, kTileSide * per_cell);
  const int vectors = outputs > kTileSide ? 2 : 4;
  const double features_out = static_cast<double>(forward ? p.rows : p.cols),
               features_in = static_cast<double>(forward ? p.cols : p.rows);
  const double elements = static_cast<double>(p.blocks) * p.block.rows * p.block.cols,
               m = static_cast<double>(p.m);
  const std::int64_t all = ceil_div(p.m, kTileSide), whole = all / vectors;
  const int rest = static_cast<int>(all % vectors);
  const auto panel = [&](int width) {
    return elements / outputs / depth_block *
           (depth_block / depth * step_cycles(side, depth / per_cell, outputs / side, width) + kBlockCycles);
  };
  double cycles = static_cast<double>(whole) * panel(vectors) + (rest ? panel(rest) : 0);
  const double passes = static_cast<double>(ceil_div(p.m, static_cast<std::int64_t>(kMacroTokens)));
  const double us = std::max(cycle * cycles, 1e6 * element * elements * passes / kSharedBytes);
  cycles = static_cast<double>(all * kTileSide) * (features_out * kOutCycles + features_in * kPackCycles) +
           (forward ? 0 : elements * kTransposeCycles);
  return {us + cycle * cycles,
          m * elements / kTileTaskProducts + m * (features_in + features_out) / kTaskProducts};
}

Work outer(const Problem& p, double cycle) {
  const int outputs = std::min(p.block.rows, 2 * kTileSide), side = std::min(outputs, kTileSide),
            piece = std::min(p.block.cols, kTileSide);
  const int wide = outputs > kTileSide ? 2 : TileOuter::kMaxPieces;
  const double elements = static_cast<double>(p.blocks) * p.block.rows * p.block.cols,
               m = static_cast<double>(p.m);
  const double tiles = static_cast<double>(ceil_div(p.m, kTileDepth)),
               features = static_cast<double>(p.rows + p.cols);
  const double sets = elements / outputs / piece / wide;
  const double cycles = sets * (tiles * step_cycles(side, kTileSide, outputs / side, wide) + kBlockCycles) +
                        elements * kOuterOutCycles + tiles * kTileDepth * features * kOuterPackCycles;
  return {cycle * cycles, m * elements / kTileTaskProducts + m * features / kTaskProducts};
}

}  // namespace

double predict_tile_us(const Problem& problem, double peak) {
  const double cycle =
      1e6 * kFlopsPerCycle * (problem.dtype == DType::i8 ? 2 : 1) / (peak > 0 ? peak : 100e9);
  const Work work = problem.direction == Direction::dw ? outer(problem, cycle) : strips(problem, cycle);
  const double tasks = std::clamp(work.tasks, 1.0, static_cast<double>(std::max(1, problem.threads)));
  return kCallUs + work.us / tasks + (tasks > 1 ? kPanelForkUs : 0);
}

}  // namespace sparseloom::kernels::cpu
