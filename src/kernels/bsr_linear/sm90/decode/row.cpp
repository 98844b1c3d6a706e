// The row of sm90_decode: wide blocks by decode, blocks of 16 x 16 by decode_x_in_shared.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/bsr_linear/cuda/cost_terms.h"
#include "kernels/bsr_linear/cuda/refusals.h"
#include "kernels/bsr_linear/cuda/rows.h"
#include "kernels/bsr_linear/sm90/decode/entry.h"
#include "kernels/bsr_linear/sm90/decode/row_parts.h"
#include "kernels/bsr_linear/sm90/decode/schedule.h"

#ifdef SPARSELOOM_HAVE_CUDA

namespace sparseloom::kernels::cuda {
namespace {

using plan::Machine;

// Blocks of 16: the time from the launch to the first bytes and from the last bytes to the end, the time for
// each byte of X, and the way through the longest block row, for each position of it. Fitted on an H200 to
// 256 x 4096 x 4096 and to the sweeps that docs/performance_log.md names.
constexpr double kStartUs = 4.6, kXUs = 6.1e-6, kLongestNs = 0.73;
// Wide blocks, fitted to the sweeps of an H100 and an H200 that docs/performance_log.md names (2026-11-25):
// the start, the sums of 64 tokens, the longest block row, and from L2 to a multiprocessor W, with the tokens
// for every 32 rows of a block.
constexpr double kWideStartUs = 3.6, kWideTokensUs = 6.25, kWideLongestNs = 0.53, kBytesPerClock = 75;
// What the others wait for each position that the longest block row has more than the mean: beyond 32 tokens
// (pruned masks of 33 to 64 tokens on an H100, group `masks`), and from 17 on (the hubs of 32 x 12288 x 49152
// in blocks of 128 x 32, 22.1 us there, where the other terms give 19.8).
constexpr double kExcessNs = 5, kFewExcessNs = 1;
// Blocks of 16: the share of the memory's nominal rate; W and 32 tokens that come from shared memory, per
// byte of W; and the sums from other thread blocks of a cluster.
constexpr double kXInSharedStream = 0.86, kXInSharedBytesPerClock = 17, kSumBytesPerClock = 14;

Refusal refusal(const Problem& p, const Machine& machine) {
  if (const Refusal why = decode90::refusal_of_both(p, machine, kXInSharedTokens)) return why;
  const bool narrow = p.block == BlockShape{16, 16};
  if (const std::int64_t rows = (p.rows + p.block.rows - 1) / p.block.rows; rows > kHopperDecodeRows)
    return {"takes at most {} block rows, there are {}", kHopperDecodeRows, rows};
  if (!narrow)
    if (const Refusal why = decode90::refuse_odd_columns(p)) return why;
  const int tokens = p.m <= 8 ? 8 : p.m <= 16 ? 16 : 32;
  const std::int64_t most_cols = std::int64_t{x_in_shared_bytes(tokens) / (tokens * 2)} * 8;
  if (narrow && p.cols > most_cols)
    return {"keeps an eighth of the tokens' columns in shared memory: at most {} columns, there are {}",
            most_cols, p.cols};
  return {};
}

double predict_us(const Problem& p, const Machine& machine) {
  const Device device(machine);
  const double stored = bytes_of(p).stored, tokens = static_cast<double>((p.m + 7) / 8 * 8);
  const Work w = work_of(p);
  if (p.block.rows == 16) {
    const double start =
        kStartUs + kXUs * static_cast<double>(p.m * p.cols) * 2 + chain_us(kLongestNs * w.longest, device);
    // X stays in shared memory, cut into as many ranges as its size requires, whose sums are added up.
    const double groups = std::ceil(tokens / 32), cols = static_cast<double>(p.cols),
                 rows = static_cast<double>(p.rows);
    const double ranges =
        std::clamp(std::exp2(std::ceil(std::log2(std::min(tokens, 32.0) * cols * 2 / 96e3))), 1.0, 8.0);
    const double passes = std::ceil(rows / 16 * groups * ranges / (64.0 * device.multiprocessors));
    const double sums = rows * tokens * 4 * (ranges - 1) / (kSumBytesPerClock * device.clocks());
    const double multiplied = groups * stored / (kXInSharedBytesPerClock * device.clocks());
    return start + 1 + 3 * (passes - 1) +
           us(std::max(stored / (kXInSharedStream * device.memory_bytes), multiplied) + sums);
  }
  const double moved = stored * (1 + tokens / 32) / (kBytesPerClock * device.clocks());
  const double chain = kWideLongestNs * w.longest + (p.m > 32   ? kExcessNs
                                                     : p.m > 16 ? kFewExcessNs
                                                                : 0) *
                                                        (w.longest - w.mean);
  return kWideStartUs + kWideTokensUs * tokens / 64 + chain_us(chain, device) +
         us(std::max(memory_seconds(stored, device), moved));
}

Refusal propose(const Problem& p, const Machine& machine, Proposals<Linear>& out) {
  if (const Refusal why = refusal(p, machine)) return why;
  const Schedule schedule = decode90::schedule_of(p, machine);
  if (schedule.cluster == 0)
    return "keeps the tokens' columns in the shared memory of a cluster, and the device runs none that is "
           "large enough";
  out.add({schedule, predict_us(p, machine), 0});
  return {};
}

}  // namespace

namespace decode90 {

Refusal refusal_of_both(const Problem& p, const plan::Machine& machine, int narrow_tokens) {
  if (const Refusal why = refuse_other_than_hopper(machine)) return why;
  if (p.direction != Direction::forward) return "does forward only";
  if (const Refusal why = refuse_other_than_16_bits(p)) return why;
  const bool narrow = p.block == BlockShape{16, 16};
  if (!narrow && std::min(p.block.rows, p.block.cols) < 32)
    return {"needs blocks of 16x16, or of 32 or more on both sides, the block is {}x{}", p.block.rows,
            p.block.cols};
  if (const int most = narrow ? narrow_tokens : kDecodeTokens; p.m > most)
    return {"takes at most {} tokens with such blocks, the call has {}", most, p.m};
  if (p.m == 0) return "takes at least one token";
  if (const Refusal why = refuse_empty_or_huge(p)) return why;
  if (!counts_fit(p.rows, p.cols, p.block, p.blocks))
    return "counts columns, outputs and the rows of all blocks in 30 bits, which the matrix does not fit";
  return {};
}

Refusal refuse_odd_columns(const Problem& p) {
  if (p.cols % 8 == 0) return {};
  return {"reads tokens 8 columns at a time: columns must be a multiple of 8, there are {}", p.cols};
}

}  // namespace decode90

Kernel sm90_decode_row() {
  Kernel row =
      cuda_row("sm90_decode", propose, [](const MatmulArgs& args, const Schedule& schedule, const Executor&) {
        return sm90_decode(args, schedule);
      });
  row.traits.needs_aligned = inputs_aligned;
  return row;
}

}  // namespace sparseloom::kernels::cuda

#endif
