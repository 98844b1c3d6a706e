// dW's operands, fp32, as three planes of bf16, as wgmma_sdd reads them; and what the planes cannot hold,
// added to the product.
//
//   planes [tokens / 32][3][32][columns]  high, middle, low, each cut off towards zero (split_blocks.h says
//   why); behind the last
//                                         token zeros
//   marks [tokens / 32][columns / 64][2]  a bit for each column, even ones in the first word: its 32 tokens
//   here, some infinite or
//                                         all below 2^-100 and not all zero, are zero in the planes
//   any                                   whether there is a mark
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/sm90/transpose_tokens.h"
#include "sparseloom/layout.h"

namespace sparseloom::kernels::cuda {

inline constexpr int kSplitTokens = 32, kSplitPlanes = 3;

struct SplitTokens {
  std::int64_t columns, tokens;

  __host__ __device__ std::int64_t groups() const { return (tokens + kSplitTokens - 1) / kSplitTokens; }
  __host__ __device__ std::int64_t stride() const {
    return (columns + 7) / 8 * 8;
  }  // of a row of the planes: 16-byte steps, which TMA wants
  __host__ __device__ std::int64_t rows() const { return groups() * kSplitPlanes * kSplitTokens; }
  __host__ __device__ std::int64_t mark_words() const { return (columns + 63) / 64 * 2; }  // of 32 tokens
  std::size_t planes_bytes() const { return static_cast<std::size_t>(rows() * stride()) * 2; }
  std::size_t marks_bytes() const {
    return static_cast<std::size_t>(groups() * mark_words()) * sizeof(std::uint32_t);
  }
};

struct SplitOperand {
  TokenMatrix from;
  std::byte* planes;     // 16-byte aligned
  std::uint32_t* marks;  // 8-byte aligned
};

/// dY and X. One launch, behind the clearing of *any.
cudaError_t split_tokens(const SplitOperand (&operands)[2], std::int64_t tokens, std::uint32_t* any,
                         cudaStream_t stream) noexcept;

/// out [blocks][bm][bn] += the products of the 32 tokens of columns of dY or X that are marked, in fp32, in
/// the order of the tokens. Returns at once where there is none.
cudaError_t add_marked_tokens(float* out, const IndexView& index, const SplitOperand (&operands)[2],
                              std::int64_t tokens, const std::uint32_t* any, cudaStream_t stream) noexcept;

}  // namespace sparseloom::kernels::cuda
