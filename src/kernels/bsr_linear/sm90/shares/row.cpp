// The row of sm90_shares.
#include <algorithm>
#include <cstdint>

#include "kernels/bsr_linear/cuda/rows.h"
#include "kernels/bsr_linear/sm90/shares/entry.h"
#include "kernels/shared/cost/cost_terms.h"
#include "kernels/shared/cost/refusals.h"

#ifdef SPARSELOOM_HAVE_CUDA

#include <cuda_runtime_api.h>

namespace sparseloom::kernels::cuda {
namespace {

using plan::Machine;

// Fitted to the sweeps of an H100 that docs/log names (2026-11-25).
struct Fit {
  double start_us, tokens_us;  // the launch, first and last bytes; the sums of 128 tokens
  double long_rows_us;         // sums of long rows, which finish last, pass through memory
  double bytes_per_clock;      // rate of W and X from L2 to a multiprocessor
  double box_clocks;           // clocks per box that the copying warp issues
  double stream;               // DRAM time relative to its nominal rate
};
// Blocks of 128 outputs, beyond 64 tokens: 128 x 18432 x 73728 in blocks of 128 x 32, 81 us on an H100.
constexpr double kTallShare = 0.83;
constexpr Fit kForward{5.1, 2.55, 0.05, 14.9, 196, 1.09}, kDx{4.8, 2.64, 0.53, 15, 249, 1.72};

int out_side(const Problem& p) { return p.direction == Direction::dx ? p.block.cols : p.block.rows; }
int k_side(const Problem& p) { return p.direction == Direction::dx ? p.block.rows : p.block.cols; }

shares::Size size_of_product(const Problem& p, const Machine& machine) {
  return shares::size_of(p.m, p.direction == Direction::dx ? p.cols : p.rows, p.blocks, out_side(p),
                         k_side(p), p.direction == Direction::forward, machine.cuda.multiprocessors);
}

Refusal refusal(const Problem& p, const Machine& machine) {
  if (const Refusal why = refuse_16_bit_forward(p, machine)) return why;
  if (const Refusal why = refuse_empty_or_huge(p)) return why;
  if (p.m == 0) return "needs at least one token";
  if (p.m > shares::kMostTokens)
    return {"supports at most {} tokens, the call has {}", shares::kMostTokens, p.m};
  if (std::min(p.block.rows, p.block.cols) < 32)
    return {"needs blocks of 32 or more on both sides, the block is {}x{}", p.block.rows, p.block.cols};
  if (const std::int64_t most = std::max(p.rows, p.cols) + 4 * p.blocks; most >= std::int64_t{1} << 30)
    return {"counts outputs and chunks of blocks in 30 bits, and there are {}", most};
  return {};
}

double predict_us(const Problem& p, const Machine& machine) {
  const Device device(machine);
  const shares::Size size = size_of_product(p, machine);
  const double stored = bytes_of(p).stored, tokens = static_cast<double>(p.m);
  // Every chunk of W needs as many columns of X, in boxes of their own.
  const Fit& fit = p.direction == Direction::dx ? kDx : kForward;
  const double moved =
      stored * (size.token_tiles + tokens / size.strip) /
      (fit.bytes_per_clock * (out_side(p) == 128 && p.m > 64 ? kTallShare : 1) * device.clocks());
  const double pieces =
      static_cast<double>(p.blocks) * (out_side(p) / size.strip) * std::max(k_side(p) / 64, 1);
  const double started = 2 * fit.box_clocks * pieces / size.shares / device.clock_hz;
  const double memory = fit.stream * memory_seconds(stored + bytes_of(p).tokens, device);
  return fit.start_us + fit.tokens_us * std::min(tokens, 128.0) / 128 +
         (p.facts.uneven_rows ? fit.long_rows_us : 0) + us(std::max({memory, moved, started}));
}

Refusal propose(const Problem& p, const Machine& machine, Proposals<Linear>& out) {
  if (const Refusal why = refusal(p, machine)) return why;
  const shares::Size size = size_of_product(p, machine);
  Schedule schedule;
  schedule.tile_m = size.tokens;
  schedule.tile_n = size.strip;
  schedule.tile_k = 64;
  schedule.split_k = size.shares;
  schedule.warps = 8;
  out.add({schedule, predict_us(p, machine), size.workspace});
  return {};
}

}  // namespace

Kernel sm90_shares_row() {
  Kernel row =
      cuda_row("sm90_shares", propose, [](const MatmulArgs& args, const Schedule& schedule, const Executor&) {
        return sm90_shares(args, schedule);
      });
  row.traits.needs_aligned = inputs_aligned;
  row.traits.stores_pre = true;
  return row;
}

int sm90_shares(const MatmulArgs& args, const Schedule& schedule) noexcept {
  const bool dx = args.direction == Direction::dx;
  if (args.direction == Direction::dw) return cudaErrorInvalidValue;
  switch (args.dtype) {
    case DType::bf16: return dx ? shares::dx_bf16(args, schedule) : shares::forward_bf16(args, schedule);
    case DType::f16: return dx ? shares::dx_f16(args, schedule) : shares::forward_f16(args, schedule);
    case DType::f32:
    case DType::f64:
    case DType::i8:
    case DType::f8e4m3: break;
  }
  return cudaErrorInvalidValue;
}

}  // namespace sparseloom::kernels::cuda

#endif
