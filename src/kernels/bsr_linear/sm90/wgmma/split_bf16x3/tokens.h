// Splits dW's fp32 operands into three planes of bf16, as wgmma::dw reads them, and adds the products that
// the planes cannot hold.
//
//   planes [tokens / 32][3][32][columns]  high, middle, low, each cut off towards zero (blocks.h says
//                                         why), and zeros after the last token
//   marks [tokens / 32][columns / 64][2]  a bit for each column, those of even columns in the first word: the
//                                         column's 32 tokens here are zero in the planes, since some are
//                                         infinite, or all are below 2^-100 and not all are zero
//   any                                   whether there is any mark
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/shared/operands/transpose.h"
#include "sparseloom/layout.h"

namespace sparseloom::kernels::cuda {

inline constexpr int kBf16x3Tokens = 32, kBf16x3Planes = 3;

struct Bf16x3Tokens {
  std::int64_t columns, tokens;

  __host__ __device__ std::int64_t groups() const { return (tokens + kBf16x3Tokens - 1) / kBf16x3Tokens; }
  __host__ __device__ std::int64_t stride() const {
    return (columns + 7) / 8 * 8;
  }  // elements per row of the planes: a multiple of TMA's 16 bytes
  __host__ __device__ std::int64_t rows() const { return groups() * kBf16x3Planes * kBf16x3Tokens; }
  __host__ __device__ std::int64_t mark_words() const { return (columns + 63) / 64 * 2; }  // per 32 tokens
  std::size_t planes_bytes() const { return static_cast<std::size_t>(rows() * stride()) * 2; }
  std::size_t marks_bytes() const {
    return static_cast<std::size_t>(groups() * mark_words()) * sizeof(std::uint32_t);
  }
};

struct Bf16x3Operand {
  TokenMatrix from;
  std::byte* planes;     // 16-byte aligned
  std::uint32_t* marks;  // 8-byte aligned
};

/// Splits dY and X. It clears *any, then launches one kernel for both.
cudaError_t bf16x3_tokens(const Bf16x3Operand (&operands)[2], std::int64_t tokens, std::uint32_t* any,
                          cudaStream_t stream) noexcept;

/// out [blocks][bm][bn] += the products, in fp32 and in token order, of the 32-token groups in which a column
/// of dY or of X is marked. It returns at once if there is no mark.
cudaError_t add_marked_tokens(float* out, const IndexView& index, const Bf16x3Operand (&operands)[2],
                              std::int64_t tokens, const std::uint32_t* any, cudaStream_t stream) noexcept;

}  // namespace sparseloom::kernels::cuda
