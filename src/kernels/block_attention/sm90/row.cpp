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

Refusal propose(const Problem& p, const plan::Machine& machine, Proposals<Attention>& out) {
  if (const Refusal why = refuse_other_than_hopper(machine)) return why;
  if (const Refusal why = refuse(p)) return why;
  const bool forward = p.direction == Direction::forward;
  const double rate = std::max(machine.gpu.tensor_flops, 1e12) * (forward ? kForwardShare : kBackwardShare);
  const std::int64_t all_q_tokens = p.ragged ? p.batch * p.q_tokens : 0;  // at most
  const std::size_t workspace =
      forward ? static_cast<std::size_t>(order_bytes(p.batch * p.heads * ((p.q_tokens + 63) / 64)))
              : BackwardWorkspace(p, all_q_tokens).bytes();
  out.add({{}, kStartUs + 1e6 * flops_of(p) / rate, workspace});
  return {};
}

constexpr Instance kForward[] = {forward_bf16_64_64,   forward_bf16_64_128, forward_bf16_128_64,
                                 forward_bf16_128_128, forward_f16_64_64,   forward_f16_64_128,
                                 forward_f16_128_64,   forward_f16_128_128};
constexpr Instance kKeys[] = {keys_bf16_64_64, keys_bf16_64_128, keys_bf16_128_64, keys_bf16_128_128,
                              keys_f16_64_64,  keys_f16_64_128,  keys_f16_128_64,  keys_f16_128_128};
constexpr Instance kDq[] = {dq_bf16_64_64, dq_bf16_64_128, dq_bf16_128_64, dq_bf16_128_128,
                            dq_f16_64_64,  dq_f16_64_128,  dq_f16_128_64,  dq_f16_128_128};

int launch(const Args& args, const Attention::Schedule&, const Executor& executor) {
  const Problem& p = args.problem;
  if (p.heads * p.batch == 0 || (p.q_tokens == 0 && p.kv_tokens == 0)) return 0;
  const Call call{p, args, executor.stream};
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
