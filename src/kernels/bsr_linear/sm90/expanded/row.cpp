// The row of sm90_expanded.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/bsr_linear/cuda/rows.h"
#include "kernels/bsr_linear/sm90/expanded/entry.h"
#include "kernels/shared/cost/cost_terms.h"
#include "kernels/shared/cost/refusals.h"

#ifdef SPARSELOOM_HAVE_CUDA

#include <cuda_runtime_api.h>

namespace sparseloom::kernels::cuda {
namespace {

using plan::Machine;

constexpr const char* kCaveat =
    "blocks are expanded to slices of 64 x 16, zeros between, so a NaN in x spreads to the outputs of the "
    "slices above it";

std::int64_t outputs_of(const Problem& p) { return p.direction == Direction::dx ? p.cols : p.rows; }
std::int64_t depth_of(const Problem& p) { return p.direction == Direction::dx ? p.rows : p.cols; }

Refusal refusal(const Problem& p, const Machine& machine) {
  if (const Refusal why = refuse_16_bit_forward(p, machine)) return why;
  if (p.strict) return "strict forbids multiplying what x holds under absent blocks";
  if (const Refusal why = refuse_empty_or_huge(p)) return why;
  if (p.m == 0) return "needs at least one token";
  if (std::max(p.block.rows, p.block.cols) > expanded::kGroup)
    return {"supports blocks of 8 to 64, the block is {}x{}", p.block.rows, p.block.cols};
  if (constexpr std::int64_t most = std::int64_t{expanded::kKTile} * expanded::kMostKTiles;
      depth_of(p) > most)
    return {"keeps masks of the reduction in shared memory, up to {} positions, and there are {}", most,
            depth_of(p)};
  if (constexpr std::int64_t most = std::int64_t{expanded::kTileOutputs} * expanded::kMostOutTiles;
      outputs_of(p) > most)
    return {"counts blocks of up to {} outputs in shared memory, and there are {}", most, outputs_of(p)};
  if (const std::int64_t vectors = p.blocks * p.block.rows * p.block.cols / 8;
      vectors >= std::int64_t{1} << 31)
    return {"counts the 16-byte vectors of all blocks in 31 bits, and there are {}", vectors};
  constexpr std::int64_t kMostTokens = 65535 * 64;  // as many tiles as a grid has
  if (p.m > kMostTokens) return {"supports at most {} tokens, the call has {}", kMostTokens, p.m};
  return {};
}

// Microseconds of a launch with its first copies and last stores. Then nanoseconds, as chain_us takes them,
// per: 256 entries of a group's lists; K tile (X of 128 tokens, which costs more if rows are not aligned to
// cache lines; slots in dX; all its slices, if none is empty; its blocks, if all are stored); sums left by
// another share; end of a tile, which nothing overlaps. Fitted on an H100 to 29 products of 33 to 2048
// tokens, blocks of 8 to 32 (2026-11-25); the end to five of 21000 to 37000 tokens. kStream: the fraction of
// the DRAM rate where that is the limit, from the group `masks` at 16 to 64 tokens, density .5, and from 32 x
// 13824 x 5120 at .61.
constexpr double kStartUs = 12.1, kEntries = 3440, kX = 400, kOffLines = 263, kSlots = 105, kSlices = 264,
                 kBlocks = 57, kSums = 2070, kEnd = 4800, kStream = 0.87;

double predict_us(const Problem& p, const Machine& machine, const expanded::Size& size) {
  const Device device(machine);
  const Work w = work_of(p);
  // Slices of 64 outputs x 16 positions that hold any block.
  const double of_slice = w.gathered < 16 ? 1 - (1 - w.density) * (1 - w.density) : w.density;
  const double slices = touched(w, of_slice, expanded::kGroup / w.side);
  const double tiles = static_cast<double>(size.out_tiles) / size.shares, k_tiles = tiles * size.k_tiles;
  const double entries = (1 + tiles) * (expanded::kGroup / w.side) * w.mean / w.gathered / 256;
  const bool off_lines = static_cast<std::int64_t>(w.depth * w.size) % 128 != 0;
  const double k_tile = kX * expanded::tile_tokens(p.m, size.token_tiles) / 128 +
                        (off_lines ? kOffLines : 0) + (p.direction == Direction::dx ? kSlots : 0) +
                        kSlices * slices + kBlocks * w.density;
  const double sums = std::max(0.0, 1 / tiles - 1) * kSums;
  // A multiprocessor has room for one thread block: more of them than that run one after the other.
  const double waves = std::ceil(static_cast<double>(size.token_tiles) * size.shares /
                                 static_cast<double>(machine.cuda.multiprocessors));
  const double ends = std::max(0.0, waves * tiles - 1) * kEnd;  // the last tile's end is part of kStartUs
  const double chain = chain_us(waves * (entries * kEntries + k_tiles * k_tile + sums) + ends, device);
  return kStartUs + std::max(chain, stream_us(p, device) / kStream);
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

int sm90_expanded(const MatmulArgs& args, const Schedule& schedule) noexcept {
  const bool dx = args.direction == Direction::dx;
  if (args.direction == Direction::dw) return cudaErrorInvalidValue;
  switch (args.dtype) {
    case DType::bf16: return dx ? expanded::dx_bf16(args, schedule) : expanded::forward_bf16(args, schedule);
    case DType::f16: return dx ? expanded::dx_f16(args, schedule) : expanded::forward_f16(args, schedule);
    case DType::f32:
    case DType::f64:
    case DType::i8:
    case DType::f8e4m3: break;
  }
  return cudaErrorInvalidValue;
}

}  // namespace sparseloom::kernels::cuda

#endif
