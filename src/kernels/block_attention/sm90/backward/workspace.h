// Where stats and sums of dq lie in the workspace.
#pragma once

#include <cstddef>
#include <cstdint>

#include "sparseloom/block_attention.h"

namespace sparseloom::kernels::cuda::attention {

struct BackwardWorkspace {
  std::int64_t places;  // of a head, or of a batch and head without starts (params.cuh)
  std::int64_t lists;   // that have so many places each
  BackwardWorkspace(const block_attention::Problem& problem, std::int64_t all_q_tokens) noexcept {
    places = problem.ragged ? all_q_tokens / 64 + problem.batch + 1 : (problem.q_tokens + 63) / 64;
    lists = problem.ragged ? problem.heads : problem.batch * problem.heads;
  }
  std::size_t stats_bytes() const noexcept { return static_cast<std::size_t>(places * lists) * 512; }
  std::size_t bytes(std::int64_t head_dim) const noexcept {
    return stats_bytes() + static_cast<std::size_t>(places * lists * head_dim) * 256;
  }
};

}  // namespace sparseloom::kernels::cuda::attention
