// Host side of TMA for q, k, v and their like: a tensor [batch, heads, tokens, head_dim] is described by a
// tensor map, whatever the strides of its first three dimensions are.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "sparseloom/block_attention.h"
#include "sparseloom/dtype.h"

namespace sparseloom::kernels::cuda::attention {

struct TokenTensor {
  block_attention::Tensor tensor;
  DType dtype;  // bf16 or f16
  std::int64_t batch, heads, tokens, head_dim;
};

/// Whether TMA can address the tensor: base and strides are multiples of 16 bytes and strides are below 2^40
/// bytes.
bool token_map_possible(const TokenTensor& tensor) noexcept;

/// Copies of 64 tokens x 64 elements of head_dim, in rows of 128 bytes that are swizzled as wgmma reads them.
/// Tokens outside the tensor arrive as zeros. Returns false if the driver refuses.
bool encode_token_map(CUtensorMap& map, const TokenTensor& tensor) noexcept;

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
