// The instances of the backward kernel: head_dim and block of keys. Each returns a cudaError_t.
#pragma once

#include "kernels/block_attention/sm90/forward/entry.h"

namespace sparseloom::kernels::cuda::attention {

/// dk, dv and, in the workspace, the stats that dq/entry.h reads.
int keys_bf16_64_64(const Call& call) noexcept;
int keys_bf16_64_128(const Call& call) noexcept;
int keys_bf16_128_64(const Call& call) noexcept;
int keys_bf16_128_128(const Call& call) noexcept;
int keys_f16_64_64(const Call& call) noexcept;
int keys_f16_64_128(const Call& call) noexcept;
int keys_f16_128_64(const Call& call) noexcept;
int keys_f16_128_128(const Call& call) noexcept;

}  // namespace sparseloom::kernels::cuda::attention
