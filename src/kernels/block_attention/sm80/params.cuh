// What the kernels of this folder read.
#pragma once

#include <cstdint>

#include "kernels/block_attention/cuda/call.h"
#include "kernels/block_attention/cuda/common.h"
#include "kernels/block_attention/sm80/tile.cuh"

namespace sparseloom::kernels::cuda::attention::sm80 {

/// By strides in elements.
struct Strided {
  std::uint16_t* data;
  std::int64_t batch, head, token;
  /// Of the sequence's first token.
  __device__ __forceinline__ std::uint16_t* rows(std::int64_t in_batch, int in_head, int first_token) const {
    return data + in_batch * batch + in_head * head + std::int64_t{first_token} * token;
  }
};

inline Strided strided(const block_attention::Tensor& tensor) {
  return {static_cast<std::uint16_t*>(const_cast<void*>(tensor.data)), tensor.batch, tensor.head,
          tensor.token};
}

/// common has the lists of queries, or of keys in keys_kernel.
struct Params {
  Common common;
  std::int32_t q_block, kv_block, q_tiles, kv_tiles, kv_heads;
  Strided q, k, v, out, dout, dq, dk, dv;
  float* lse;
  const float* stats;
  std::int32_t places;
};

inline Params params_of(const Call& call, const Lists& lists) {
  const block_attention::Problem& p = call.problem;
  const block_attention::Args& args = call.args;
  Params params{};
  params.common = common_of(p, args, lists);
  params.q_block = p.q_block;
  params.kv_block = p.kv_block;
  params.q_tiles = static_cast<std::int32_t>((p.q_tokens + p.q_block - 1) / p.q_block);
  params.kv_tiles = static_cast<std::int32_t>((p.kv_tokens + p.kv_block - 1) / p.kv_block);
  params.kv_heads = static_cast<std::int32_t>(p.kv_heads);
  params.q = strided(args.q), params.k = strided(args.k), params.v = strided(args.v);
  params.out = strided(args.out), params.dout = strided(args.dout);
  params.dq = strided(args.dq), params.dk = strided(args.dk), params.dv = strided(args.dv);
  params.lse = args.lse;
  return params;
}

/// The first key of a list's unit of 64, and kPartial.
__device__ __forceinline__ std::int32_t unit_token(const std::int32_t* entries, int block, int unit) {
  constexpr std::int32_t kPartial = block_attention::Lists::kPartial;
  const int halves = block / 64;
  const std::int32_t entry = entries[unit / halves], partial = entry & kPartial;
  return ((entry ^ partial) * block + unit % halves * 64) | partial;
}

}  // namespace sparseloom::kernels::cuda::attention::sm80
