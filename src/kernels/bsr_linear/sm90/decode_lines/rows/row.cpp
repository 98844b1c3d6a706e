// The row of sm90_decode_lines: the method rows, and x_streamed for many blocks of 16 x 16.
#include <algorithm>
#include <cstdint>

#include "kernels/bsr_linear/cuda/rows.h"
#include "kernels/bsr_linear/sm80/decode/entry.h"
#include "kernels/bsr_linear/sm90/decode_lines/entry.h"
#include "kernels/bsr_linear/sm90/decode_lines/rows/schedule.h"
#include "kernels/bsr_linear/sm90/decode_lines/x_streamed/entry.h"
#include "kernels/shared/cost/cost_terms.h"
#include "kernels/shared/cost/refusals.h"

#ifdef SPARSELOOM_HAVE_CUDA

#include <cuda_runtime_api.h>

namespace sparseloom::kernels::cuda {
namespace {

using plan::Machine;

// Wide blocks, fitted to the sweeps of an H100 and an H200 that docs/log names (2026-11-25): the start, the
// sums of 64 tokens, the bytes of X, the longest block row, the rate from L2 to a multiprocessor, and the
// DRAM rate of one strip if there are few.
constexpr double kWideStartUs = 1.95, kWideTokensUs = 1.72, kWideXUs = 1.13e-6, kWideLongestNs = 0.33,
                 kBytesPerClock = 24.5, kStripBytes = 137e9;
// Times that a weight passes from L2, by tokens: 3 at 64, as that fit had it, and up to 30 tokens what 32 x
// 12288 x 12288 at .1 to .8 took on an H200 (2026-11-30). A line from 1 made the plan take sm90_expanded
// there, in 58 us for 40.
constexpr double kWideFewTokens = 1.4, kWideTokens = 21;
// Blocks of 16: the same times, the rate of the stored blocks as a stream relative to DRAM's nominal rate,
// then the rate at which L2 answers requests of all multiprocessors together; a token is one request and a
// block's values are four.
constexpr double kLongestNs = 0.17, kStartUs = 2.35, kXUs = 2.6e-6, kStream = 0.88, kNarrowStripBytes = 60e9,
                 kRequests = 150e9;

// Times with X streamed (../x_streamed/kernel.cuh), fitted to 32 x 12288 x 12288 and 24 x 4096 x 16384.
constexpr double kXStreamedUs = 3.9, kXStreamedStream = 0.88, kXStreamedBytesPerClock = 48;

Refusal refusal(const Problem& p, const Machine& machine) {
  if (const Refusal why = refuse_other_than_hopper(machine)) return why;
  if (p.direction != Direction::forward) return "supports forward only";
  if (const Refusal why = refuse_other_than_16_bits(p)) return why;
  const bool narrow = p.block == BlockShape{16, 16};
  if (!narrow && std::min(p.block.rows, p.block.cols) < 32)
    return {"needs blocks of 16x16, or of 32 or more on both sides, the block is {}x{}", p.block.rows,
            p.block.cols};
  if (const int most = narrow ? kNarrowBlockRowTokens : kDecodeTokens; p.m > most)
    return {"supports at most {} tokens with such blocks, the call has {}", most, p.m};
  if (p.m == 0) return "needs at least one token";
  if (const Refusal why = refuse_empty_or_huge(p)) return why;
  if (!decode_lines::counts_fit(p.rows, p.cols, p.block, p.blocks))
    return "counts columns, outputs and the rows of all blocks in 30 bits, which the matrix does not fit";
  if (p.facts.uneven_rows)
    return "gives each block row warps of its own, and some have more than 1.5 times the mean number of "
           "blocks";
  if (p.cols % 8 != 0)
    return {"reads tokens 8 columns at a time: columns must be a multiple of 8, there are {}", p.cols};
  return {};
}

double predict_us(const Problem& p, const Machine& machine) {
  const Device device(machine);
  const double stored = bytes_of(p).stored, tokens = static_cast<double>((p.m + 7) / 8 * 8);
  const double block_rows = static_cast<double>(p.rows) / std::min(p.block.rows, 32);
  const double x_us = kXUs * static_cast<double>(p.m * p.cols) * 2;
  const std::int64_t pairs = device.multiprocessors / 2;
  if (p.block.rows == 16 && decode_lines::x_streamed::passes(p.m, p.rows, p.cols, p.blocks, pairs)) {
    const double moved = decode_lines::x_streamed::moved_bytes(p.rows, p.cols, p.blocks, pairs) /
                         (kXStreamedBytesPerClock * device.clocks());
    return kXStreamedUs + x_us + us(std::max(stored / (kXStreamedStream * device.memory_bytes), moved));
  }
  const double longest = work_of(p).longest;
  if (p.block.rows == 16) {
    const double memory = std::min(kStream * device.memory_bytes, block_rows * kNarrowStripBytes);
    return kStartUs + x_us + chain_us(kLongestNs * longest, device) +
           1.08 * us(std::max(stored / memory, static_cast<double>(p.blocks) * (4 + tokens) / kRequests));
  }
  return kWideStartUs + kWideTokensUs * tokens / 64 + kWideXUs * static_cast<double>(p.m * p.cols) * 2 +
         chain_us(kWideLongestNs * longest, device) +
         us(std::max(
             {memory_seconds(stored, device), stored / (block_rows * kStripBytes),
              stored * std::max(kWideFewTokens, tokens / kWideTokens) / (kBytesPerClock * device.clocks())}));
}

Refusal propose(const Problem& p, const Machine& machine, Proposals<Linear>& out) {
  if (const Refusal why = refusal(p, machine)) return why;
  // Two weights pass as one with the blocks of both would.
  Problem both = p;
  both.glu = false;
  if (p.glu) {
    if (p.m > kGluTokens || p.block.rows == 16)
      return {"computes a glu of at most {} tokens, in blocks of 32 or more", kGluTokens};
    if (p.factor_blocks == 0) return "needs a stored block in both weights";
    both.rows *= 2;
    both.blocks += p.factor_blocks;
    if (!decode_lines::counts_fit(p.rows, p.cols, p.block, p.factor_blocks))
      return "counts columns, outputs and the rows of all blocks in 30 bits, which the matrix does not fit";
  }
  out.add({decode_lines::rows::schedule_of(p, machine), predict_us(both, machine), 0});
  return {};
}

}  // namespace

Kernel sm90_decode_lines_row() {
  Kernel row = cuda_row("sm90_decode_lines", propose,
                        [](const MatmulArgs& args, const Schedule& schedule, const Executor&) {
                          return sm90_decode_lines(args, schedule);
                        });
  row.traits.needs_aligned = inputs_aligned;
  row.traits.glu = true;
  return row;
}

int sm90_decode_lines(const MatmulArgs& args, const Schedule& schedule) noexcept {
  const BlockShape block = args.index.block;
  const bool narrow = block == BlockShape{decode_lines::kSide, decode_lines::kSide},
             halves = args.dtype == DType::bf16 || args.dtype == DType::f16;
  if (args.m < 1 || args.m > (narrow ? kNarrowBlockRowTokens : kDecodeTokens) ||
      args.direction != Direction::forward || !halves || (!narrow && std::min(block.rows, block.cols) < 32))
    return cudaErrorInvalidValue;
  return args.dtype == DType::bf16 ? decode_lines::rows::launch_bf16(args, schedule)
                                   : decode_lines::rows::launch_f16(args, schedule);
}

}  // namespace sparseloom::kernels::cuda

#endif
