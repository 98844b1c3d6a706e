// The tensors of a call as tensor maps describe them.
#pragma once

#include "kernels/block_attention/cuda/common.h"
#include "kernels/block_attention/sm90/operands/token_map.h"
#include "sparseloom/block_attention.h"

namespace sparseloom::kernels::cuda::attention {

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
