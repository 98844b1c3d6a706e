// Interface between the launcher of the fp32 forward and dX kernels and their instances: one launch function
// per direction, each in a file of its own so that they compile in parallel.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/bsr_linear/sm80/ffma/forward_shape.h"
#include "sparseloom/activation.h"
#include "sparseloom/direction.h"

namespace sparseloom::kernels::cuda::ffma {

/// Parameters of the kernels. forward: a = X; dx: a = dY, and "block row" means block column.
struct ForwardParams {
  const float* a;
  std::int64_t a_stride;
  const float* values;
  const float* bias;      // or null
  const float* residual;  // [m, width], or null
  std::int64_t residual_stride;
  float* out;
  std::int64_t out_stride;
  std::int64_t m, width, depth;  // out is [m, width], a is [m, depth]
  // Blocks of block row l: block_row[l] .. block_row[l + 1] - 1 (crow, or ccol).
  const std::int32_t* block_row;
  const std::int32_t* across;                   // their positions along the reduction (col, or row)
  const std::int32_t* slot;                     // dx: their positions in values
  std::uint32_t output_tiles;                   // tiles along the width
  int side, side_shift;                         // extent of a block along the reduction, and its log2
  int block_row_side, block_row_shift;          // extent of a block along the outputs, and its log2
  bool a_aligned, values_aligned, out_aligned;  // to 16 bytes, in every row
  Activation activation;
};

/// grid: number of thread blocks, of one tile each; outputs vary faster than tokens.
cudaError_t ffma_forward(const ForwardParams& params, ForwardShape shape, unsigned grid, int device,
                         cudaStream_t stream) noexcept;
cudaError_t ffma_dx(const ForwardParams& params, ForwardShape shape, unsigned grid, int device,
                    cudaStream_t stream) noexcept;

}  // namespace sparseloom::kernels::cuda::ffma
