// The row of sm90_expanded.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/bsr_linear/cuda/cost_terms.h"
#include "kernels/bsr_linear/cuda/refusals.h"
#include "kernels/bsr_linear/cuda/rows.h"
#include "kernels/bsr_linear/sm90/forward_expanded/entry.h"

#ifdef SPARSELOOM_HAVE_CUDA

namespace sparseloom::kernels::cuda {
namespace {

using plan::Machine;

constexpr const char* kCaveat =
    "blocks are expanded to slices of 64 x 16, zeros between, so a NaN in x spreads to the outputs of the "
    "slices above it";

std::int64_t outputs_of(const Problem& p) { return p.direction == Direction::dx ? p.cols : p.rows; }
std::int64_t depth_of(const Problem& p) { return p.direction == Direction::dx ? p.rows : p.cols; }

Refusal refusal(const Problem& p, const Machine& machine) {
  if (const Refusal why = refuse_16_bit_dds(p, machine)) return why;
  if (p.strict) return "strict forbids multiplying what x holds under absent blocks";
  if (const Refusal why = refuse_empty_or_huge(p)) return why;
  if (p.m == 0) return "takes at least one token";
  if (std::max(p.block.rows, p.block.cols) > expanded::kGroup)
    return {"takes blocks of 8 to 64, the block is {}x{}", p.block.rows, p.block.cols};
  if (constexpr std::int64_t most = std::int64_t{expanded::kKTile} * expanded::kMostKTiles;
      depth_of(p) > most)
    return {"keeps masks of the reduction in shared memory, up to {} positions, and there are {}", most,
            depth_of(p)};
  if (constexpr std::int64_t most = std::int64_t{expanded::kTileOutputs} * expanded::kMostOutTiles;
      outputs_of(p) > most)
    return {"counts blocks of up to {} outputs in shared memory, and there are {}", most, outputs_of(p)};
  if (const std::int64_t pieces = p.blocks * p.block.rows * p.block.cols / 8; pieces >= std::int64_t{1} << 31)
    return {"counts the pieces of 16 bytes of all blocks in 31 bits, and there are {}", pieces};
  constexpr std::int64_t kMostTokens = 65535 * 64;  // as many tiles as a grid has
  if (p.m > kMostTokens) return {"takes at most {} tokens, the call has {}", kMostTokens, p.m};
  return {};
}

// The launch with the time to the first bytes; the sums of cut tiles on their way through L2; bytes of X and
// W that a multiprocessor takes from L2 in a clock; and the share of the tensor cores' rate.
constexpr double kStartUs = 6, kSumBytesPerClock = 20, kBytesPerClock = 32, kTensorShare = 0.7;

double predict_us(const Problem& p, const Machine& machine, const expanded::Size& size) {
  const Device device(machine);
  const Work w = work_of(p);
  // Slices of 64 outputs x 16 positions that hold any block.
  const double density = w.gathered < 16 ? 1 - (1 - w.density) * (1 - w.density) : w.density;
  const double slices = touched(w, density, std::max(1.0, expanded::kGroup / w.side));
  const double tiles = static_cast<double>(size.out_tiles) * size.k_tiles / size.shares;
  const double clocks = tiles * slices * (expanded::kTileOutputs / 64) * (expanded::kKTile / 16) *
                        (size.tokens / 2) / kTensorShare;
  const double stored = bytes_of(p).stored;
  const double copied =
      (tiles * expanded::tile_tokens(p.m, size.token_tiles) * expanded::kKTile * 2 + stored / size.shares) /
      kBytesPerClock;
  const double sums = 2.0 * expanded::kTileOutputs * size.tokens * 4 / kSumBytesPerClock;
  return kStartUs + us(std::max(std::max(clocks, copied) / device.clock_hz,
                                memory_seconds(stored + bytes_of(p).tokens, device)) +
                       sums / device.clock_hz);
}

Refusal propose(const Problem& p, const Machine& machine, Proposals<Linear>& out) {
  if (const Refusal why = refusal(p, machine)) return why;
  const expanded::Size size =
      expanded::size_of(p.m, outputs_of(p), depth_of(p), machine.cuda.multiprocessors);
  Schedule schedule;
  schedule.tile_m = size.tokens;
  schedule.tile_n = expanded::kTileOutputs;
  schedule.tile_k = expanded::kKTile;
  schedule.split_k = size.shares;
  schedule.warps = 12;
  schedule.swap_ab = true;
  out.add({schedule, predict_us(p, machine, size), size.workspace});
  return {};
}

}  // namespace

Kernel sm90_expanded_row() {
  Kernel row = cuda_row("sm90_expanded", propose,
                        [](const MatmulArgs& args, const Schedule& schedule, const Executor&) {
                          return sm90_expanded(args, schedule);
                        });
  row.caveat = kCaveat;
  row.traits.needs_aligned = inputs_aligned;
  row.traits.stores_pre = true;
  return row;
}

}  // namespace sparseloom::kernels::cuda

#endif
