// Where stats and the order of tiles lie in the workspace of a backward call.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/block_attention/cuda/order_bytes.h"
#include "sparseloom/block_attention.h"

namespace sparseloom::kernels::cuda::attention {

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

}  // namespace sparseloom::kernels::cuda::attention
