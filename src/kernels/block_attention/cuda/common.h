// The part of a call that all CUDA kernels read alike.
#pragma once

#include "kernels/block_attention/cuda/sequence.cuh"
#include "sparseloom/block_attention.h"

namespace sparseloom::kernels::cuda::attention {

inline Common common_of(const block_attention::Problem& problem, const block_attention::Args& args,
                        const Lists& lists) {
  Common common{};
  common.lists = lists;
  common.q_starts = args.q_starts;
  common.kv_starts = args.kv_starts;
  common.q_documents = args.q_documents;
  common.kv_documents = args.kv_documents;
  common.q_tokens = static_cast<std::int32_t>(problem.q_tokens);
  common.kv_tokens = static_cast<std::int32_t>(problem.kv_tokens);
  common.all_q_tokens =
      static_cast<std::int32_t>(args.q_starts != nullptr ? args.all_q_tokens : problem.q_tokens);
  common.all_kv_tokens =
      static_cast<std::int32_t>(args.q_starts != nullptr ? args.all_kv_tokens : problem.kv_tokens);
  common.heads = static_cast<std::int32_t>(problem.heads);
  common.heads_per_kv = static_cast<std::int32_t>(problem.heads / problem.kv_heads);
  common.scale = args.scale;
  common.causal = problem.causal;
  return common;
}

}  // namespace sparseloom::kernels::cuda::attention
