// The instances of the kernels of this folder: head_dim, and the block of queries (forward, dq) or keys. Each
// returns a cudaError_t.
#pragma once

#include "kernels/block_attention/cuda/call.h"

namespace sparseloom::kernels::cuda::attention {

int forward_bf16_64_64(const Call& call) noexcept;
int forward_bf16_64_128(const Call& call) noexcept;
int forward_bf16_128_64(const Call& call) noexcept;
int forward_bf16_128_128(const Call& call) noexcept;
int forward_f16_64_64(const Call& call) noexcept;
int forward_f16_64_128(const Call& call) noexcept;
int forward_f16_128_64(const Call& call) noexcept;
int forward_f16_128_128(const Call& call) noexcept;

/// dk, dv and, in the workspace, the stats that dq_* read.
int keys_bf16_64_64(const Call& call) noexcept;
int keys_bf16_64_128(const Call& call) noexcept;
int keys_bf16_128_64(const Call& call) noexcept;
int keys_bf16_128_128(const Call& call) noexcept;
int keys_f16_64_64(const Call& call) noexcept;
int keys_f16_64_128(const Call& call) noexcept;
int keys_f16_128_64(const Call& call) noexcept;
int keys_f16_128_128(const Call& call) noexcept;

int dq_bf16_64_64(const Call& call) noexcept;
int dq_bf16_64_128(const Call& call) noexcept;
int dq_bf16_128_64(const Call& call) noexcept;
int dq_bf16_128_128(const Call& call) noexcept;
int dq_f16_64_64(const Call& call) noexcept;
int dq_f16_64_128(const Call& call) noexcept;
int dq_f16_128_64(const Call& call) noexcept;
int dq_f16_128_128(const Call& call) noexcept;

}  // namespace sparseloom::kernels::cuda::attention
