// The row of sm80_decode.
#include <algorithm>
#include <cmath>

#include "kernels/bsr_linear/cuda/rows.h"
#include "kernels/bsr_linear/sm80/decode/entry.h"
#include "kernels/bsr_linear/sm80/decode/schedule.h"
#include "kernels/shared/cost/cost_terms.h"

#ifdef SPARSELOOM_HAVE_CUDA

#include <cuda_runtime_api.h>

namespace sparseloom::kernels::cuda {
namespace {

using plan::Machine;

// Fitted to the sweeps of an H100 and an H200 whose seeds docs/log names (2026-11-25);
// forward, then dX.
struct Fit {
  double start_us, stream;  // fraction of the DRAM rate
  double l2;     // 1e12 bytes per second of the tokens' fragments (16 tokens per position of a strip)
  double strip;  // cost of a strip's values, in such fragments
  double chain, chain_token;  // ns per position of the longest block row, and per 16 tokens
  double ragged;              // additional cost of element-wise loads, for both
  double ffma;                // 1e12 flops per second
};
constexpr Fit kForward{2.26, 0.765, 3.71, 0.68, 0.551, 0.512, 4.1, 8.1},
    kDx{2.89, 0.9, 2.74, 0.2, 0.734, 0.636, 3.45, 10.9};

// A thread block computes a strip of a block row for all tokens. The longest block row's strip ends last,
// after a chain of K tiles.
double predict_us(const Problem& p, const Machine& machine) {
  const Device device(machine);
  const Work w = work_of(p);
  const Fit& fit = p.direction == Direction::dx ? kDx : kForward;
  const double strip = std::min(w.side, 32.0), strips = std::ceil(w.out / strip),
               token_tiles = std::ceil(w.m / 16), slower = w.ragged ? 1 + fit.ragged : 1;
  const double chain = slower * w.longest * (fit.chain + fit.chain_token * token_tiles);
  const double gathered = strips * w.mean * 16 * w.size * (fit.strip + token_tiles);
  const double ffma = p.dtype == DType::f32 && !p.tf32 ? 2 * strips * strip * w.mean * 16 * token_tiles : 0;
  return fit.start_us + chain_us(chain, device) +
         std::max({stream_us(p, device) / fit.stream, slower * rate_us(gathered, fit.l2, device),
                   rate_us(ffma, fit.ffma, device)});
}

Refusal propose(const Problem& p, const Machine& machine, Proposals<Linear>& out) {
  if (const Refusal why = refuse_decode(p, machine)) return why;
  out.add({decode::schedule_of(p, machine), predict_us(p, machine), 0});
  return {};
}

}  // namespace

Refusal refuse_decode(const Problem& p, const plan::Machine&) {
  if (p.direction == Direction::dw) return "supports forward and dx only: dw reads both operands in full";
  if (p.m == 0) return "needs at least one token";
  if (p.m > kDecodeTokens) return {"supports at most {} tokens, the call has {}", kDecodeTokens, p.m};
  return {};
}

Kernel sm80_decode_row() {
  Kernel row =
      cuda_row("sm80_decode", propose, [](const MatmulArgs& args, const Schedule& schedule, const Executor&) {
        return sm80_decode(args, schedule);
      });
  row.traits.follows_index = true;
  return row;
}

int sm80_decode(const MatmulArgs& args, const Schedule& schedule) noexcept {
  if (args.m < 1 || args.m > kDecodeTokens || args.direction == Direction::dw) return cudaErrorInvalidValue;
  switch (args.dtype) {
    case DType::bf16: return decode::launch_bf16(args, schedule);
    case DType::f16: return decode::launch_f16(args, schedule);
    case DType::f32:
      return args.tf32 ? decode::launch_tf32(args, schedule) : decode::launch_ffma(args, schedule);
    case DType::f64:
    case DType::i8:
    case DType::f8e4m3: break;
  }
  return cudaErrorInvalidValue;
}

}  // namespace sparseloom::kernels::cuda

#endif
