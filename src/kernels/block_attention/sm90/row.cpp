// The row sm90_wgmma: attention on Hopper, forward and backward; and the list of CUDA's rows.
#include <algorithm>

#include "kernels/block_attention/cuda/call.h"
#include "kernels/block_attention/rows.h"
#include "kernels/block_attention/sm90/entry.h"
#include "kernels/shared/cost/refusals.h"
#include "plan/machine.h"

#ifdef SPARSELOOM_HAVE_CUDA

namespace sparseloom::kernels::cuda::attention {
namespace {

using block_attention::Args, block_attention::Direction, block_attention::Problem;
using Attention = block_attention::Attention;

// Of the tensor cores' rate over kept blocks, and microseconds of a call (an H200: docs/log/attention.md).
constexpr double kForwardShare = 0.55, kBackwardShare = 0.45, kStartUs = 10;

// A part has at least so many units of 64 keys, some 2 us of work, and the parts of a list are at most so
// many.
constexpr std::int64_t kUnitsOfPart = 4, kMostParts = 32;

/// Parts of each list, so that the tiles of few queries fill the teams of all multiprocessors. Sequences of
/// several lengths stay whole: their lists do too little to be worth it.
int splits_of(const Problem& p, int multiprocessors) {
  if (p.ragged || p.q_tokens == 0 || p.batch * p.heads == 0) return 1;
  const std::int64_t tiles = p.batch * p.heads * ((p.q_tokens + p.q_block - 1) / p.q_block);
  const std::int64_t teams = std::int64_t{multiprocessors} * (p.q_block == 64 ? 3 : 1);
  const std::int64_t units = std::min(p.capacity * p.kv_block, p.kv_tokens) / 64;
  return static_cast<int>(
      std::clamp<std::int64_t>(std::min(teams / tiles, units / kUnitsOfPart), 1, kMostParts));
}

Refusal propose(const Problem& p, const plan::Machine& machine, Proposals<Attention>& out) {
  if (const Refusal why = refuse_other_than_hopper(machine)) return why;
  if (const Refusal why = refuse(p)) return why;
  const bool forward = p.direction == Direction::forward;
  const double rate = std::max(machine.gpu.tensor_flops, 1e12) * (forward ? kForwardShare : kBackwardShare);
  const std::int64_t all_q_tokens = p.ragged ? p.batch * p.q_tokens : 0;  // at most
  const int splits = forward ? splits_of(p, machine.cuda.multiprocessors) : 1;
  const std::size_t workspace =
      forward ? ForwardWorkspace(p, splits).bytes() : BackwardWorkspace(p, all_q_tokens).bytes();
  out.add({{splits}, kStartUs + 1e6 * flops_of(p) / rate, workspace});
  return {};
}

constexpr Instance kForward[] = {forward_bf16_64_64,   forward_bf16_64_128, forward_bf16_128_64,
                                 forward_bf16_128_128, forward_f16_64_64,   forward_f16_64_128,
                                 forward_f16_128_64,   forward_f16_128_128};
constexpr Instance kKeys[] = {keys_bf16_64_64, keys_bf16_64_128, keys_bf16_128_64, keys_bf16_128_128,
                              keys_f16_64_64,  keys_f16_64_128,  keys_f16_128_64,  keys_f16_128_128};
constexpr Instance kDq[] = {dq_bf16_64_64, dq_bf16_64_128, dq_bf16_128_64, dq_bf16_128_128,
                            dq_f16_64_64,  dq_f16_64_128,  dq_f16_128_64,  dq_f16_128_128};

int launch(const Args& args, const Attention::Schedule& schedule, const Executor& executor) {
  const Problem& p = args.problem;
  if (p.heads * p.batch == 0 || (p.q_tokens == 0 && p.kv_tokens == 0)) return 0;
  const Call call{p, args, executor.stream, schedule.splits};
  if (p.direction == Direction::forward) return p.q_tokens == 0 ? 0 : instance(kForward, p, p.q_block)(call);
  if (const int status = instance(kKeys, p, p.kv_block)(call); status != 0) return status;
  return p.q_tokens == 0 ? 0 : instance(kDq, p, p.q_block)(call);
}

}  // namespace

AttentionRow sm90_wgmma() { return {"sm90_wgmma", Placement::cuda, propose, launch}; }

}  // namespace sparseloom::kernels::cuda::attention

std::span<const sparseloom::kernels::AttentionRow> sparseloom::kernels::attention_cuda_rows() {
  static const AttentionRow rows[] = {cuda::attention::sm90_wgmma(), cuda::attention::sm80_mma()};
  return rows;
}

#else

std::span<const sparseloom::kernels::AttentionRow> sparseloom::kernels::attention_cuda_rows() { return {}; }

#endif
