// Between the launcher of the fp32 forward and dX kernels and their instances: one launch function per
// direction, each in a file of its own so that they compile side by side.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "sparseloom/plan.h"

namespace sparseloom::kernels::cuda::ffma {

/// forward: a = X, lines are block rows; dx: a = dY, lines are block columns.
struct DdsParams {
  const float* a;
  std::int64_t a_stride;
  const float* values;
  const float* bias;      // or null
  const float* residual;  // [m, width], or null
  std::int64_t residual_stride;
  float* out;
  std::int64_t out_stride;
  std::int64_t m, width, depth;  // out is [m, width], a is [m, depth]
  const std::int32_t* line;      // blocks of line l: line[l] .. line[l + 1] - 1 (crow, or ccol)
  const std::int32_t* across;    // their places along the reduction (col, or row)
  const std::int32_t* slot;      // dx: their places in values
  std::uint32_t output_tiles;    // over the width
  int side, side_shift;          // of a block along the reduction, and its logarithm
  int line_side, line_shift;     // of a block along the outputs
  bool a_aligned, values_aligned, out_aligned;  // to 16 bytes, in every row
  Activation activation;
};

/// Tokens x outputs of a thread block. `narrow` sides are for blocks of that side; larger ones are cut.
enum class DdsShape : std::uint8_t { t128x64, t256x32, t256x16, t256x8, t64x32 };

struct DdsExtent {
  int tokens, outputs;
};

constexpr DdsExtent extent(DdsShape shape) {
  switch (shape) {
    case DdsShape::t128x64: return {128, 64};
    case DdsShape::t256x32: return {256, 32};
    case DdsShape::t256x16: return {256, 16};
    case DdsShape::t256x8: return {256, 8};
    default: return {64, 32};
  }
}

/// grid: thread blocks, each of one tile; outputs run faster than tokens.
cudaError_t ffma_dds_forward(const DdsParams& params, DdsShape shape, unsigned grid, int device,
                             cudaStream_t stream) noexcept;
cudaError_t ffma_dds_dx(const DdsParams& params, DdsShape shape, unsigned grid, int device,
                        cudaStream_t stream) noexcept;

}  // namespace sparseloom::kernels::cuda::ffma
