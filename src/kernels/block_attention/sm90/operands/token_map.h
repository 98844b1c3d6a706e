// Host side of TMA for q, k, v and their like: it describes a tensor [batch, heads, tokens, head_dim] by a
// tensor map, whatever the strides of its first three dimensions are.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "sparseloom/block_attention.h"
#include "sparseloom/dtype.h"

namespace sparseloom::kernels::cuda::attention {

struct TokenTensor {
  block_attention::Tensor tensor;
  DType dtype;  // bf16 or f16
  std::int64_t batch, heads, tokens, head_dim;
};

/// Whether TMA can address the tensor: base and strides are multiples of 16 bytes and strides are below 2^40
/// bytes.
bool token_map_possible(const TokenTensor& tensor) noexcept;

/// Copies of 64 tokens x 64 elements of head_dim, in rows of 128 bytes that are swizzled as wgmma reads them.
/// Tokens outside the tensor arrive as zeros. Returns false if the driver refuses.
bool encode_token_map(CUtensorMap& map, const TokenTensor& tensor) noexcept;

}  // namespace sparseloom::kernels::cuda::attention
