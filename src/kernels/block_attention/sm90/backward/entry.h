// The instances of the backward kernel: head_dim and block of keys. Each returns a cudaError_t.
#pragma once

#include "kernels/block_attention/sm90/forward/entry.h"

namespace sparseloom::kernels::cuda::attention {

/// dq, dk and dv. dq is summed in memory, in no order. For blocks of 128 keys alone: with 64, keys_* and dq_*
/// take less time, though they multiply more (S 8192 and 32768 at .1 to 1: .84 to .98 of it on an H200).
int backward_bf16_64_128(const Call& call) noexcept;
int backward_bf16_128_128(const Call& call) noexcept;
int backward_f16_64_128(const Call& call) noexcept;
int backward_f16_128_128(const Call& call) noexcept;

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
