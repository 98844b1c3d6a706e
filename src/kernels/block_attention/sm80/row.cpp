// The row sm80_mma: attention on GPUs from compute capability 8.0 on, forward and backward.
#include <algorithm>

#include "kernels/block_attention/cuda/call.h"
#include "kernels/block_attention/rows.h"
#include "kernels/block_attention/sm80/entry.h"
#include "plan/machine.h"

#ifdef SPARSELOOM_HAVE_CUDA

namespace sparseloom::kernels::cuda::attention {
namespace {

using block_attention::Args, block_attention::Direction, block_attention::Problem;
using Attention = block_attention::Attention;

// Of the tensor cores' rate over kept blocks, and microseconds of a call (an H200: docs/log/attention.md).
constexpr double kForwardShare = 0.3, kBackwardShare = 0.2, kStartUs = 10;

Refusal propose(const Problem& p, const plan::Machine& machine, Proposals<Attention>& out) {
  if (machine.cuda.sm < 80)
    return {"needs compute capability 8.0, the device has {}.{}", machine.cuda.sm / 10, machine.cuda.sm % 10};
  if (const Refusal why = refuse(p)) return why;
  const bool forward = p.direction == Direction::forward;
  const double rate = std::max(machine.gpu.tensor_flops, 1e12) * (forward ? kForwardShare : kBackwardShare);
  const std::size_t workspace =
      forward ? 0 : BackwardWorkspace(p, p.ragged ? p.batch * p.q_tokens : 0).bytes();
  out.add({{}, kStartUs + 1e6 * flops_of(p) / rate, workspace});
  return {};
}

constexpr Instance kForward[] = {
    sm80_forward_bf16_64_64, sm80_forward_bf16_64_128, sm80_forward_bf16_128_64, sm80_forward_bf16_128_128,
    sm80_forward_f16_64_64,  sm80_forward_f16_64_128,  sm80_forward_f16_128_64,  sm80_forward_f16_128_128};
constexpr Instance kKeys[] = {sm80_keys_bf16_64_64,   sm80_keys_bf16_64_128, sm80_keys_bf16_128_64,
                              sm80_keys_bf16_128_128, sm80_keys_f16_64_64,   sm80_keys_f16_64_128,
                              sm80_keys_f16_128_64,   sm80_keys_f16_128_128};
constexpr Instance kDq[] = {sm80_dq_bf16_64_64,   sm80_dq_bf16_64_128, sm80_dq_bf16_128_64,
                            sm80_dq_bf16_128_128, sm80_dq_f16_64_64,   sm80_dq_f16_64_128,
                            sm80_dq_f16_128_64,   sm80_dq_f16_128_128};

int launch(const Args& args, const Attention::Schedule&, const Executor& executor) {
  const Problem& p = args.problem;
  if (p.heads * p.batch == 0 || (p.q_tokens == 0 && p.kv_tokens == 0)) return 0;
  const Call call{p, args, executor.stream};
  if (p.direction == Direction::forward) return p.q_tokens == 0 ? 0 : instance(kForward, p, p.q_block)(call);
  if (const int status = instance(kKeys, p, p.kv_block)(call); status != 0) return status;
  return p.q_tokens == 0 ? 0 : instance(kDq, p, p.q_block)(call);
}

}  // namespace

AttentionRow sm80_mma() { return {"sm80_mma", Placement::cuda, propose, launch}; }

}  // namespace sparseloom::kernels::cuda::attention

#endif
