// The part of a call that all Hopper kernels read alike.
#pragma once

#include "kernels/block_attention/sm90/operands/sequence.cuh"
#include "kernels/block_attention/sm90/operands/token_map.h"
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

/// A tensor as maps describe it. Without tokens there is nothing to copy, but a map has at least one: it is
/// taken from `other`, which has some.
inline TokenTensor described(const block_attention::Problem& p, const block_attention::Tensor& tensor,
                             const block_attention::Tensor& other, std::int64_t heads, std::int64_t tokens,
                             bool ragged) {
  const std::int64_t batch = ragged ? 1 : p.batch;
  if (tokens > 0) return {tensor, p.dtype, batch, heads, tokens, p.head_dim};
  return {other, p.dtype, 1, 1, 1, p.head_dim};
}

/// The maps' view of a tensor of queries (or like them), and of keys.
inline TokenTensor of_queries(const block_attention::Problem& p, const block_attention::Args& args,
                              const block_attention::Tensor& tensor) {
  const bool ragged = args.q_starts != nullptr;
  return described(p, tensor, args.k, p.heads, ragged ? args.all_q_tokens : p.q_tokens, ragged);
}
inline TokenTensor of_keys(const block_attention::Problem& p, const block_attention::Args& args,
                           const block_attention::Tensor& tensor) {
  const bool ragged = args.q_starts != nullptr;
  return described(p, tensor, args.q, p.kv_heads, ragged ? args.all_kv_tokens : p.kv_tokens, ragged);
}

}  // namespace sparseloom::kernels::cuda::attention
