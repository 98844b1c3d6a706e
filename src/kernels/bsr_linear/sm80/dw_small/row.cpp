// The row of sm80_dw_small.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/bsr_linear/cuda/cost_terms.h"
#include "kernels/bsr_linear/cuda/refusals.h"
#include "kernels/bsr_linear/cuda/rows.h"
#include "kernels/bsr_linear/sm80/dw_small/cut.h"
#include "kernels/bsr_linear/sm80/dw_small/entry.h"

#ifdef SPARSELOOM_HAVE_CUDA

namespace sparseloom::kernels::cuda {
namespace {

using plan::Machine;

Refusal refusal(const Problem& p) {
  if (p.direction != Direction::dw) return "does dw only";
  if (const Refusal why = refuse_other_than_16_bits(p)) return why;
  if (p.m > dw_small::kMostTokens)
    return {"takes at most {} tokens, the call has {}", dw_small::kMostTokens, p.m};
  // A tile is at least a 64th of a block.
  if (p.blocks >= std::int64_t{1} << 25)
    return {"counts parts of blocks in 31 bits, and there are {} blocks", p.blocks};
  return {};
}

// Fitted to the sweeps of an H100 that docs/performance_log.md names (2026-11-25).
constexpr double kStartUs = 2.15;            // the launch, the search, one copy and one store
constexpr double kTokensUs = 1.45;           // what 256 tokens add to that
constexpr double kStoredShare = 0.74;        // of the memory's rate
constexpr double kNarrowStores = 1.9;        // blocks of 16 columns and less are stored in short rows
constexpr double kReadBytesPerClock = 18.6;  // L2 to one multiprocessor
// Copies by elements: for every 16 tokens, and of the bytes read.
constexpr double kElementsUs = 0.5, kElementsBytesPerClock = 8;

double predict_us(const Problem& p, const dw_small::Tile& tile, const Machine& machine) {
  if (p.blocks == 0) return kStartUs;
  const Device device(machine);
  // A tile reads dY of each block row that it has blocks of.
  const double block_rows = std::ceil(static_cast<double>(p.rows) / p.block.rows),
               tile_blocks = dw_small::blocks_of(tile, p.block);
  const double rows_of_blocks =
      std::min(tile_blocks, 1 + (tile_blocks - 1) * block_rows / static_cast<double>(p.blocks));
  const double read = static_cast<double>(dw_small::thread_blocks(tile, p.block, p.blocks)) *
                      (tile.columns + tile.rows * rows_of_blocks) * static_cast<double>(p.m) * 2;
  const double by_elements = p.aligned ? 0
                                       : kElementsUs * dw_small::padded_tokens(p.m) / 16 +
                                             us(read / (kElementsBytesPerClock * device.clocks()));
  return kStartUs + kTokensUs * dw_small::padded_tokens(p.m) / dw_small::kMostTokens + by_elements +
         us((p.block.cols <= 16 ? kNarrowStores : 1) * memory_seconds(bytes_of(p).stored, device) /
                kStoredShare +
            read / (kReadBytesPerClock * device.clocks()));
}

Refusal propose(const Problem& p, const Machine& machine, Proposals<Linear>& out) {
  if (const Refusal why = refusal(p)) return why;
  const dw_small::Tile tile = dw_small::choose_tile(p.block, p.blocks, p.m, machine.cuda.multiprocessors);
  Schedule schedule;
  schedule.tile_m = tile.rows, schedule.tile_n = tile.columns, schedule.warps = dw_small::kWarps;
  out.add({schedule, predict_us(p, tile, machine), 0});
  return {};
}

}  // namespace

Kernel sm80_dw_small_row() {
  return cuda_row("sm80_dw_small", propose,
                  [](const MatmulArgs& args, const Schedule& schedule, const Executor&) {
                    return sm80_dw_small(args, schedule);
                  });
}

}  // namespace sparseloom::kernels::cuda

#endif
