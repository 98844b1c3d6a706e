// A call of a CUDA kernel: what an entry gets, its workspace, and what the rows have in common.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "sparseloom/block_attention.h"
#include "sparseloom/refusal.h"

namespace sparseloom::kernels::cuda::attention {

struct Call {
  const block_attention::Problem& problem;
  const block_attention::Args& args;
  void* stream;
  int splits = 1;  // Schedule's
};

/// Bytes of OrderParams's work and order, a multiple of 256.
inline std::int64_t order_bytes(std::int64_t tiles) noexcept {
  return ((2 * tiles + 1) * 4 + 255) / 256 * 256;
}

/// A forward pass: the order of its tiles, or with splits the parts' logarithms [splits, batch, heads,
/// q_tokens] and outputs [.., head_dim], both fp32.
struct ForwardWorkspace {
  std::int64_t rows, out_at, all;

  ForwardWorkspace(const block_attention::Problem& p, int splits) noexcept
      : rows(p.batch * p.heads * p.q_tokens),
        out_at(splits > 1 ? (splits * rows * 4 + 255) / 256 * 256 : 0),
        all(splits > 1 ? out_at + splits * rows * p.head_dim * 4
                       : order_bytes(p.batch * p.heads * ((p.q_tokens + 63) / 64))) {}
  std::size_t bytes() const noexcept { return static_cast<std::size_t>(all); }
};

struct BackwardWorkspace {
  std::int64_t places;  // units of 64 queries of a head, or of a batch and head without starts (params.cuh)
  std::int64_t lists;   // that have so many places each
  std::int64_t stats_bytes, tiles;

  BackwardWorkspace(const block_attention::Problem& problem, std::int64_t all_q_tokens) noexcept {
    places = problem.ragged ? all_q_tokens / 64 + problem.batch + 1 : (problem.q_tokens + 63) / 64;
    lists = problem.ragged ? problem.heads : problem.batch * problem.heads;
    stats_bytes = places * lists * 512;
    tiles = problem.batch * std::max(problem.heads * ((problem.q_tokens + 63) / 64),
                                     problem.kv_heads * ((problem.kv_tokens + 63) / 64));
  }
  std::int64_t order_at() const noexcept { return stats_bytes; }
  std::size_t bytes() const noexcept { return static_cast<std::size_t>(order_at() + order_bytes(tiles)); }
};

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
