// Transposes dW's operands for a product whose instruction reads fp32 only along a row: each column's tokens
// become a row.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace sparseloom::kernels::cuda {

/// fp32 [tokens, columns], with `stride` elements from row to row, at any address.
struct TokenMatrix {
  const float* data;
  std::int64_t columns, stride;
};

/// Elements from row to row of what is written: a multiple of 16 bytes, which TMA wants.
inline std::int64_t transposed_stride(std::int64_t tokens) { return (tokens + 3) / 4 * 4; }
inline std::size_t transposed_bytes(std::int64_t columns, std::int64_t tokens) {
  return static_cast<std::size_t>(columns) * static_cast<std::size_t>(transposed_stride(tokens)) *
         sizeof(float);
}

/// to[i] [columns, transposed_stride(tokens)] <- the transpose of from[i] [tokens, columns]. What is
/// between rows is unspecified. One launch does both. `to` is 16-byte aligned and has transposed_bytes.
cudaError_t transpose_tokens(float* const (&to)[2], const TokenMatrix (&from)[2], std::int64_t tokens,
                             cudaStream_t stream) noexcept;

}  // namespace sparseloom::kernels::cuda
