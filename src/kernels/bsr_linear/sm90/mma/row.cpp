// The row of sm90_mma.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/bsr_linear/cuda/rows.h"
#include "kernels/bsr_linear/sm90/mma/entry.h"
#include "kernels/bsr_linear/sm90/mma/ring.h"
#include "kernels/bsr_linear/sm90/mma/row_parts.h"
#include "kernels/shared/cost/cost_terms.h"
#include "kernels/shared/cost/refusals.h"

#ifdef SPARSELOOM_HAVE_CUDA

namespace sparseloom::kernels::cuda {
namespace sm90_mma {
namespace {

// Fitted to the sweeps of an H200 whose seeds docs/log names (2026-11-25); forward, then dX.
struct Fit {
  double start_us, step, block;  // ns of a thread block: per K tile of 64, which all warps wait for and step
                                 // over, and per block times 64 tokens
  double longest;  // fraction of the longest block row's excess over the mean that is waited for
  double streams;  // share of DRAM bytes not overlapped by the products
};
constexpr Fit kForward{4.0, 104, 12.1, 0.3, 0.362}, kDx{4.0, 115, 11.2, 0.36, 0.343};

// In the sweeps of an H200 and an H100, bands whose K tiles fit the slots took this many times as long as
// blocks at random: most consumer warps have no block in a K tile and wait for the few that have many.
constexpr double kBand = 1.2;

// The fraction of its places that the fullest K tile of a tile stores, without chance: neighbouring rows of a
// band store the same block columns, each of which is stored by some `mean * rows / columns` rows.
double fullest(const Work& w) {
  const double blocks = w.mean / kSide;
  return w.banded ? std::min(1.0, blocks * w.block_rows / w.block_columns / kTileBlockRows) : w.density;
}

Ring ring_for(const Work& w) { return ring_of(fullest(w), static_cast<int>(std::ceil(w.depth / kKTile))); }

// The stages of a K tile: a power of two, as table.cuh chooses it for the fullest one.
double stages_of_k_tile(const Work& w) {
  if (!w.banded) return 1;
  const double most = kMostSlots * fullest(w);
  double subsets = 1;
  for (const int slots = ring_for(w).slots; most / subsets > slots && subsets < kTileBlockRows / 2;)
    subsets *= 2;
  return subsets;
}

}  // namespace

Refusal refusal_of_shape(const Problem& p, const plan::Machine& machine) {
  if (const Refusal why = refuse_16_bit_forward(p, machine)) return why;
  if (p.block != BlockShape{16, 16})
    return {"needs blocks of 16x16, the block is {}x{}", p.block.rows, p.block.cols};
  const std::int64_t along = ((p.direction == Direction::dx ? p.rows : p.cols) + 15) / 16;
  if (along > kMmaAlong)
    return {"keeps a table of at most {} block positions along the reduction, there are {}", kMmaAlong,
            along};
  return refuse_too_many_tiles(p.m, p.direction == Direction::dx ? p.cols : p.rows, kTileTokens,
                               kTileOutputs);
}

// The kernel is limited by L2, from which every 512 outputs read X and every 64 tokens read the values, or
// with many blocks by mma.sync and its operand loads.
double predict_us(const Problem& p, const plan::Machine& machine) {
  const Device device(machine);
  const Work w = work_of(p);
  const Fit& fit = p.direction == Direction::dx ? kDx : kForward;
  const double tiles = std::ceil(w.m / kTileTokens) * std::ceil(w.out / kTileOutputs);
  // Figures of a full tile; the last tile of a row of tiles may be smaller.
  const double k_tiles = std::ceil(w.depth / kKTile),
               blocks = static_cast<double>(p.blocks) * std::min(1.0, kTileOutputs / w.out);
  const double rounds = std::ceil(tiles / device.multiprocessors);
  const double read = tiles * 2 * (k_tiles * kTileTokens * kKTile + blocks * kSide * kSide);
  const double l2 = us(read / (device.l2_share * kWgmmaL2BytesPerClock * device.clocks()));
  const double excess = w.mean > 0 ? w.longest / w.mean - 1 : 0;
  const double steps =
      (w.banded ? kBand : 1) * rounds *
      (k_tiles * stages_of_k_tile(w) * fit.step + blocks * fit.block * (1 + fit.longest * excess));
  return fit.start_us + std::max(l2, chain_us(steps, device)) + fit.streams * stream_us(p, device);
}

Schedule schedule_of(const Problem& p, const plan::Machine& machine) {
  const bool dx = p.direction == Direction::dx;
  const auto ceil_div = [](std::int64_t a, std::int64_t b) { return (a + b - 1) / b; };
  const Ring ring = ring_for(work_of(p));
  Schedule schedule;
  schedule.tile_m = kTileTokens, schedule.tile_n = kTileOutputs, schedule.tile_k = kKTile;
  schedule.stages = ring.stages, schedule.slots = ring.slots;
  // The smallest grid with the fewest waves. It often divides into whole M tiles, so that each thread block
  // keeps one group of block rows.
  const std::int64_t tiles =
      std::max<std::int64_t>(1, ceil_div(p.m, kTileTokens) * ceil_div(dx ? p.cols : p.rows, kTileOutputs));
  schedule.grid =
      static_cast<std::int32_t>(ceil_div(tiles, ceil_div(tiles, std::max(1, machine.cuda.multiprocessors))));
  return schedule;
}

}  // namespace sm90_mma

namespace {

Refusal propose(const Problem& p, const plan::Machine& machine, Proposals<Linear>& out) {
  if (const Refusal why = sm90_mma::refusal_of_shape(p, machine)) return why;
  if (const Refusal why = refuse_empty_or_huge(p)) return why;
  out.add({sm90_mma::schedule_of(p, machine), sm90_mma::predict_us(p, machine), 0});
  return {};
}

}  // namespace

Kernel sm90_mma_row() {
  Kernel row =
      cuda_row("sm90_mma", propose, [](const MatmulArgs& args, const Schedule& schedule, const Executor&) {
        return sm90_mma_forward(args, schedule);
      });
  row.traits.needs_aligned = all_aligned;
  row.traits.follows_index = true;
  row.traits.stores_pre = true;
  return row;
}

}  // namespace sparseloom::kernels::cuda

#endif
