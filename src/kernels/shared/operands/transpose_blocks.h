// Transposes blocks for a product whose instruction reads them in one direction only.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "sparseloom/pattern.h"

namespace sparseloom::kernels::cuda {

/// to[i] [block.cols, block.rows] <- the transpose of from[slot[i]] [block.rows, block.cols], for i below
/// `blocks`. Values are fp32, in sides that are multiples of 32; `to` and `from` do not overlap. It is one
/// launch.
cudaError_t transpose_blocks(float* to, const float* from, const std::int32_t* slot, std::int64_t blocks,
                             BlockShape block, cudaStream_t stream) noexcept;

}  // namespace sparseloom::kernels::cuda
