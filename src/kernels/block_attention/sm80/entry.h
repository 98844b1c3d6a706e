// The instances of this folder: head_dim, and the block of queries or keys. Each returns a cudaError_t.
#pragma once

#include "kernels/block_attention/cuda/call.h"

namespace sparseloom::kernels::cuda::attention {

int sm80_forward_bf16_64_64(const Call& call) noexcept;
int sm80_forward_bf16_64_128(const Call& call) noexcept;
int sm80_forward_bf16_128_64(const Call& call) noexcept;
int sm80_forward_bf16_128_128(const Call& call) noexcept;
int sm80_forward_f16_64_64(const Call& call) noexcept;
int sm80_forward_f16_64_128(const Call& call) noexcept;
int sm80_forward_f16_128_64(const Call& call) noexcept;
int sm80_forward_f16_128_128(const Call& call) noexcept;

/// dk, dv and, in the workspace, the stats that sm80_dq_* reads.
int sm80_keys_bf16_64_64(const Call& call) noexcept;
int sm80_keys_bf16_64_128(const Call& call) noexcept;
int sm80_keys_bf16_128_64(const Call& call) noexcept;
int sm80_keys_bf16_128_128(const Call& call) noexcept;
int sm80_keys_f16_64_64(const Call& call) noexcept;
int sm80_keys_f16_64_128(const Call& call) noexcept;
int sm80_keys_f16_128_64(const Call& call) noexcept;
int sm80_keys_f16_128_128(const Call& call) noexcept;

int sm80_dq_bf16_64_64(const Call& call) noexcept;
int sm80_dq_bf16_64_128(const Call& call) noexcept;
int sm80_dq_bf16_128_64(const Call& call) noexcept;
int sm80_dq_bf16_128_128(const Call& call) noexcept;
int sm80_dq_f16_64_64(const Call& call) noexcept;
int sm80_dq_f16_64_128(const Call& call) noexcept;
int sm80_dq_f16_128_64(const Call& call) noexcept;
int sm80_dq_f16_128_128(const Call& call) noexcept;

}  // namespace sparseloom::kernels::cuda::attention
