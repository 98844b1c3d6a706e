// The row of sm80_decode_staged.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/bsr_linear/cuda/rows.h"
#include "kernels/bsr_linear/sm80/decode/entry.h"
#include "kernels/bsr_linear/sm80/decode/schedule.h"
#include "kernels/bsr_linear/sm80/decode_staged/entry.h"
#include "kernels/shared/cost/cost_terms.h"
#include "kernels/shared/cost/refusals.h"

#ifdef SPARSELOOM_HAVE_CUDA

#include <cuda_runtime_api.h>

namespace sparseloom::kernels::cuda {
namespace {

using plan::Machine;

// Fitted to the sweeps of an H200 whose seeds docs/log names (2026-11-25): the start, ns per byte of X, the
// fraction of the DRAM's nominal rate, ns per position of the longest block row, and 1e12 bytes per second of
// the tokens that every block row gathers.
constexpr double kStartUs = 3.84, kXNs = 0.0245, kStream = 0.64, kChainNs = 0.354, kGather = 6.26;

Refusal refusal(const Problem& p, const Machine& machine) {
  if (const Refusal why = refuse_decode(p, machine)) return why;
  if (p.direction != Direction::forward) return "supports forward only";
  if (const Refusal why = refuse_other_than_16_bits(p)) return why;
  if (std::max(p.block.rows, p.block.cols) > kStagedBlock)
    return {"supports blocks of at most {} on each side, the block is {}x{}", kStagedBlock, p.block.rows,
            p.block.cols};
  if (p.cols > kStagedColumns) return {"supports at most {} columns, there are {}", kStagedColumns, p.cols};
  return {};
}

double predict_us(const Problem& p, const Machine& machine) {
  const Device device(machine);
  const Work w = work_of(p);
  const double tokens = std::ceil(w.m / 8) * 8;
  const double gathered = static_cast<double>(p.blocks) * w.gathered * tokens * w.size;
  return kStartUs + chain_us(kXNs * tokens * w.depth * w.size + kChainNs * w.longest, device) +
         std::max(us(memory_seconds(bytes_of(p).stored, device)) / kStream,
                  rate_us(gathered, kGather, device));
}

/// Bytes through a multiprocessor's port, the bottleneck for everything but W. `warp_bytes`: a warp's partial
/// sums; `stored`: bytes of W.
double bytes_moved(const decode::staged::Tiling& tiling, std::int64_t waves, const Problem& p,
                   std::int64_t warp_bytes, double stored) {
  // Two barriers of the cluster, about 0.9 us, as bytes of a port of 70 GB/s.
  constexpr double kClusterBytes = 60e3;
  const std::int64_t thread_blocks =
      decode::staged::ceil_div(tiling.strips, tiling.block_strips) * tiling.split;
  const double x = static_cast<double>(tiling.range) * p.block.cols * static_cast<double>(p.m) * 2;
  const double partials = tiling.split == 1 ? 0
                                            : kClusterBytes + 2.0 * static_cast<double>(tiling.block_strips) *
                                                                  static_cast<double>(warp_bytes);
  return static_cast<double>(waves) * (x + partials + stored / static_cast<double>(thread_blocks));
}

// Strips of 16 outputs, or of 8 if 16 would leave multiprocessors without a thread block even when k is split
// over a cluster. Narrow strips load more of X per byte of W.
Schedule schedule_of(const Problem& p, const Machine& machine) {
  using namespace decode::staged;
  const int expected_split = machine.cuda.sm >= 90 ? 4 : 1;
  const bool few = (p.rows + 15) / 16 * expected_split * 10 < std::int64_t{9} * machine.cuda.multiprocessors;
  Schedule schedule;
  schedule.tile_m = p.m <= 16 ? 16 : p.m <= 32 ? 32 : 64;
  schedule.tile_n = p.block.rows == 8 || few ? 8 : 16;
  const int tiles = schedule.tile_n / kTileOutputs, token_tiles = schedule.tile_m / kTileTokens;
  const std::int64_t warp_bytes = std::int64_t{vectors(tiles, token_tiles)} * 16,
                     shared = std::max<std::int64_t>(static_cast<std::int64_t>(machine.cuda.shared_bytes),
                                                     48 << 10);
  const std::int64_t most = std::min<std::int64_t>(most_warps(tiles, token_tiles), shared / warp_bytes);
  const std::int64_t block_rows = ceil_div(p.rows, p.block.rows),
                     strips = block_rows * (p.block.rows / schedule.tile_n);
  const double stored = static_cast<double>(p.blocks) * p.block.rows * p.block.cols * 2;

  // The split of k over a cluster that moves the fewest bytes.
  double best_bytes = 0;
  for (unsigned i = 0; i < machine.clusters.size(); ++i) {
    const std::int64_t slots = i == 0 ? std::max(machine.cuda.multiprocessors, 1) : machine.clusters[i];
    if (slots == 0) continue;
    Schedule cut = schedule;
    cut.cluster = 1 << i;
    const std::int64_t waves = std::max<std::int64_t>(1, ceil_div(strips, slots * most));
    cut.tiles_at_once = static_cast<std::int32_t>(std::max<std::int64_t>(1, ceil_div(strips, slots * waves)));
    const double bytes =
        bytes_moved(tiling_of(cut, strips, p.cols, p.block.cols), waves, p, warp_bytes, stored);
    if (i > 0 && bytes >= best_bytes) continue;
    best_bytes = bytes;
    schedule.cluster = cut.cluster, schedule.tiles_at_once = cut.tiles_at_once;
  }

  // Warps of a strip: no more than its average steps in one thread block, but at least 8 in all, since they
  // also copy X.
  const double groups = static_cast<double>(p.blocks) /
                        (static_cast<double>(std::max<std::int64_t>(1, block_rows)) * schedule.cluster);
  const auto steps = static_cast<std::int64_t>(groups / step_groups(p.block.cols / 8 * tiles)) + 1;
  const std::int64_t wanted = std::max<std::int64_t>(steps, 8 / schedule.tiles_at_once);
  schedule.warps =
      static_cast<std::int32_t>(std::max<std::int64_t>(std::min(most / schedule.tiles_at_once, wanted), 1));
  // At least two chunks: the first is multiplied while the second arrives.
  const std::int64_t range = round_up(ceil_div(round_up(p.cols, kRangeAlign), schedule.cluster), kRangeAlign);
  const std::int64_t most_chunk =
      shared / (2 * std::int64_t{schedule.tile_m} * 2) / kRangeAlign * kRangeAlign;
  schedule.tile_k = static_cast<std::int32_t>(
      round_up(ceil_div(range, std::max<std::int64_t>(ceil_div(range, most_chunk), 2)), kRangeAlign));
  return schedule;
}

Refusal propose(const Problem& p, const Machine& machine, Proposals<Linear>& out) {
  if (const Refusal why = refusal(p, machine)) return why;
  out.add({schedule_of(p, machine), predict_us(p, machine), 0});
  return {};
}

}  // namespace

Kernel sm80_decode_staged_row() {
  Kernel row = cuda_row("sm80_decode_staged", propose,
                        [](const MatmulArgs& args, const Schedule& schedule, const Executor&) {
                          return sm80_decode_staged(args, schedule);
                        });
  row.traits.needs_aligned = inputs_aligned;
  return row;
}

int sm80_decode_staged(const MatmulArgs& args, const Schedule& schedule) noexcept {
  const IndexView& index = args.index;
  if (args.m < 1 || args.m > kDecodeTokens || args.direction != Direction::forward)
    return cudaErrorInvalidValue;
  if (size_of(args.dtype) != 2 || std::max(index.block.rows, index.block.cols) > kStagedBlock)
    return cudaErrorInvalidValue;
  if (reinterpret_cast<std::uintptr_t>(args.values) % 16 != 0 || index.cols > kStagedColumns)
    return cudaErrorInvalidValue;
  return args.dtype == DType::bf16 ? decode::staged::launch_bf16(args, schedule)
                                   : decode::staged::launch_f16(args, schedule);
}

}  // namespace sparseloom::kernels::cuda

#endif
