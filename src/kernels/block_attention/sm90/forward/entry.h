// The instances of the forward kernel: head_dim and block of queries. Each returns a cudaError_t.
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

}  // namespace sparseloom::kernels::cuda::attention
