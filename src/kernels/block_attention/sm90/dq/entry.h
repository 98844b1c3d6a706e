// The instances of the kernel of dq: head_dim and block of queries. They read the stats that keys_* of
// backward/entry.h left in the workspace. Each returns a cudaError_t.
#pragma once

#include "kernels/block_attention/sm90/forward/entry.h"

namespace sparseloom::kernels::cuda::attention {

int dq_bf16_64_64(const Call& call) noexcept;
int dq_bf16_64_128(const Call& call) noexcept;
int dq_bf16_128_64(const Call& call) noexcept;
int dq_bf16_128_128(const Call& call) noexcept;
int dq_f16_64_64(const Call& call) noexcept;
int dq_f16_64_128(const Call& call) noexcept;
int dq_f16_128_64(const Call& call) noexcept;
int dq_f16_128_128(const Call& call) noexcept;

}  // namespace sparseloom::kernels::cuda::attention
