// Forward and dX in fp32 by FFMA, host side: finds the instance that the schedule names, and launches it.
#include <bit>
#include <cstdint>
#include <limits>

#include "kernels/bsr_linear/sm80/ffma/entry.h"
#include "kernels/bsr_linear/sm80/ffma/forward.h"

namespace sparseloom::kernels::cuda {
namespace {

using ffma::ForwardExtent;
using ffma::ForwardParams;
using ffma::ForwardShape;

/// Finds the instance with the schedule's tile. Its outputs lie in one block row.
bool find_shape(const Schedule& schedule, int block_row_side, ForwardShape& instance) {
  for (const ForwardShape shape : ffma::kForwardShapes) {
    const ForwardExtent tile = ffma::extent(shape);
    if (schedule.tile_m != tile.tokens || schedule.tile_n != tile.outputs) continue;
    instance = shape;
    return tile.outputs <= block_row_side;
  }
  return false;
}

bool aligned(const void* matrix, std::int64_t stride) {
  return reinterpret_cast<std::uintptr_t>(matrix) % 16 == 0 && stride % 4 == 0;
}

int log2_of(int side) { return std::countr_zero(static_cast<unsigned>(side)); }

}  // namespace

int sm80_ffma_forward(const MatmulArgs& args, const Schedule& schedule) noexcept {
  const IndexView& index = args.index;
  const bool forward = args.direction == Direction::forward;
  ForwardParams params;
  params.a = static_cast<const float*>(args.a);
  params.a_stride = args.a_stride;
  params.values = static_cast<const float*>(args.values);
  params.bias = static_cast<const float*>(args.bias);
  params.residual = static_cast<const float*>(args.residual);
  params.residual_stride = args.residual_stride;
  params.out = static_cast<float*>(args.out);
  params.out_stride = args.out_stride;
  params.m = args.m;
  params.width = forward ? index.rows : index.cols;
  params.depth = forward ? index.cols : index.rows;
  params.block_row = forward ? index.crow : args.transposed.ccol;
  params.across = forward ? index.col : args.transposed.row;
  params.slot = forward ? nullptr : args.transposed.slot;
  params.side = forward ? index.block.cols : index.block.rows;
  params.block_row_side = forward ? index.block.rows : index.block.cols;
  params.side_shift = log2_of(params.side);
  params.block_row_shift = log2_of(params.block_row_side);
  params.a_aligned = aligned(args.a, args.a_stride);
  params.values_aligned = aligned(args.values, 0);
  params.out_aligned = aligned(args.out, args.out_stride);
  params.activation = args.activation;
  if (args.m == 0 || params.width == 0) return cudaSuccess;

  ForwardShape shape{};
  if (!find_shape(schedule, params.block_row_side, shape)) return cudaErrorInvalidValue;
  const int outputs = ffma::extent(shape).outputs;
  const std::int64_t grid = ffma::forward_tiles(shape, args.m, params.width);
  // Positions of a reduction are counted in 32 bits and thread blocks in 31. No matrix that fits on a GPU
  // reaches these limits.
  if (grid > std::numeric_limits<std::int32_t>::max() ||
      params.depth > std::numeric_limits<std::int32_t>::max() - 256)
    return cudaErrorInvalidConfiguration;
  params.output_tiles = static_cast<std::uint32_t>((params.width + outputs - 1) / outputs);
  const auto launch = forward ? ffma::ffma_forward : ffma::ffma_dx;
  return launch(params, shape, static_cast<unsigned>(grid), args.device,
                static_cast<cudaStream_t>(args.stream));
}

}  // namespace sparseloom::kernels::cuda
