// Blocks turned over ahead of a product whose instruction reads them one way only.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "sparseloom/pattern.h"

namespace sparseloom::kernels::cuda {

/// to[i] [block.cols, block.rows] <- the transpose of from[slot[i]] [block.rows, block.cols], for i below
/// blocks; fp32, sides multiples of 32. One launch; `to` and `from` apart.
cudaError_t transpose_blocks(float* to, const float* from, const std::int32_t* slot, std::int64_t blocks,
                             BlockShape block, cudaStream_t stream) noexcept;

}  // namespace sparseloom::kernels::cuda
