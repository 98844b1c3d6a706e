// What the CUDA rows have in common: refusals, work, and the choice of an instance.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/block_attention/cuda/call.h"
#include "sparseloom/refusal.h"

namespace sparseloom::kernels::cuda::attention {

/// The refusals of every row here, besides the device's.
inline Refusal refuse(const block_attention::Problem& p) {
  if (p.dtype != DType::bf16 && p.dtype != DType::f16)
    return {"supports bf16 and f16, not {}", name_of(p.dtype)};
  if (p.head_dim != 64 && p.head_dim != 128)
    return {"supports head sizes of 64 and 128, this one is {}", p.head_dim};
  if (!p.aligned) return "needs operands whose base and rows lie at multiples of 16 bytes, and one does not";
  if (p.batch > 65535 || p.heads > 65535) return "supports 65535 batches and heads at most";
  const std::int64_t units = p.batch * (std::max(p.q_tokens, p.kv_tokens) / 64 + 2);
  if (units * p.heads >= std::int64_t{1} << 31) return "counts blocks of 64 tokens of all heads in 31 bits";
  return {};
}

/// Flops of the pairs that the lists of queries have room for.
inline double flops_of(const block_attention::Problem& p) {
  const double pairs = static_cast<double>(p.batch * p.heads) * static_cast<double>(p.q_tokens) *
                       static_cast<double>(std::min(p.capacity * p.kv_block, p.kv_tokens));
  return pairs * static_cast<double>(p.head_dim) *
         (p.direction == block_attention::Direction::forward ? 4 : 10);
}

using Instance = int (*)(const Call&) noexcept;

/// By dtype, head size and block: bf16 first, then 64 before 128.
inline Instance instance(const Instance (&all)[8], const block_attention::Problem& p, std::int32_t block) {
  return all[(p.dtype == DType::f16 ? 4 : 0) + (p.head_dim == 128 ? 2 : 0) + (block == 128 ? 1 : 0)];
}

}  // namespace sparseloom::kernels::cuda::attention
