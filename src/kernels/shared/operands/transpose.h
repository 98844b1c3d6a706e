// Transposes operands for a product whose instruction reads fp32 in one direction only: blocks of W for dX,
// and for dW dY and X, so that the tokens of a column become a row.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "sparseloom/pattern.h"

namespace sparseloom::kernels::cuda {

/// to[i] [block.cols, block.rows] <- the transpose of from[slot[i]] [block.rows, block.cols], for i below
/// `blocks`. Values are fp32, in sides that are multiples of 32; `to` and `from` do not overlap. It is one
/// launch.
cudaError_t transpose_blocks(float* to, const float* from, const std::int32_t* slot, std::int64_t blocks,
                             BlockShape block, cudaStream_t stream) noexcept;

/// fp32 [tokens, columns], with a row stride of `stride` elements, at any address.
struct TokenMatrix {
  const float* data;
  std::int64_t columns, stride;
};

/// Row stride of the output in elements: a multiple of TMA's 16 bytes.
inline std::int64_t transposed_stride(std::int64_t tokens) { return (tokens + 3) / 4 * 4; }
inline std::size_t transposed_bytes(std::int64_t columns, std::int64_t tokens) {
  return static_cast<std::size_t>(columns) * static_cast<std::size_t>(transposed_stride(tokens)) *
         sizeof(float);
}

/// to[i] [columns, transposed_stride(tokens)] <- the transpose of from[i] [tokens, columns]. The elements
/// between rows are unspecified. One launch does both. `to` is 16-byte aligned and has transposed_bytes.
cudaError_t transpose_tokens(float* const (&to)[2], const TokenMatrix (&from)[2], std::int64_t tokens,
                             cudaStream_t stream) noexcept;

}  // namespace sparseloom::kernels::cuda
