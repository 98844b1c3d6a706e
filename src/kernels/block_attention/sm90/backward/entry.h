// The instances of the backward kernel: head_dim and block of keys. Each returns a cudaError_t.
#pragma once

#include <cstddef>

#include "kernels/block_attention/sm90/forward/entry.h"

namespace sparseloom::kernels::cuda::attention {

/// Bytes of args.workspace, a multiple of 256: stats, and sums of dq.
std::size_t backward_workspace(const block_attention::Problem& problem, std::int64_t all_q_tokens) noexcept;

int backward_bf16_64_64(const Call& call) noexcept;
int backward_bf16_64_128(const Call& call) noexcept;
int backward_bf16_128_64(const Call& call) noexcept;
int backward_bf16_128_128(const Call& call) noexcept;
int backward_f16_64_64(const Call& call) noexcept;
int backward_f16_64_128(const Call& call) noexcept;
int backward_f16_128_64(const Call& call) noexcept;
int backward_f16_128_128(const Call& call) noexcept;

}  // namespace sparseloom::kernels::cuda::attention
