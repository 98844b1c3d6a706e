// Host side of conv_forward: looks up the instance for the block's side, and launches it.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/args.h"
#include "kernels/bsr_conv/sm80/entry.h"
#include "kernels/bsr_conv/sm80/forward_mma/kernel.cuh"
#include "kernels/bsr_linear/sm80/mma/forward/launch.cuh"
#include "kernels/shared/early_launch.cuh"

namespace sparseloom::kernels::cuda::conv_forward {

template <class Element, int kIndex>
using TileAt = mma::forward::Tile<Element, kTiles[kIndex].block_row, kTiles[kIndex].tokens,
                                  kTiles[kIndex].chunk_bytes, kTiles[kIndex].warps_m, kTiles[kIndex].warps_n,
                                  kTiles[kIndex].stages, kTiles[kIndex].blocks_per_sm>;

/// The pixel count of the largest stride class; forward has one class, and dx's are about equal.
template <class Direction>
std::int64_t most_pixels(const conv::Shape& shape) {
  std::int64_t pixels = shape.images;
  for (const Axis& axis : shape.axis)
    pixels *= kIsDx<Direction> ? conv::walk_dx(axis, 0).walked : conv::walk_forward(axis).walked;
  return pixels;
}

template <class Direction, class T>
int launch_tile(const Params& params, const MatmulArgs& args, const conv::Shape& shape) noexcept {
  constexpr int kSharedBytes = sizeof(SharedStorage<T>);
  static_assert(kSharedBytes <= T::kStages * T::kStageBytes + kTableBytes, "the row's workspace bound holds");
  static_assert(kSharedBytes <= 163 * 1024, "exceeds the 163 KB of shared memory of sm_80");
  if (const cudaError_t status = allow_shared_memory<conv_forward_kernel<Direction, T>>(
          kSharedBytes, args.device, cudaSharedmemCarveoutMaxShared);
      status != cudaSuccess)
    return status;
  const std::int64_t tiles =
      mma::forward::ceil_div(most_pixels<Direction>(shape), T::kTokens) * params.block_rows;
  const std::int64_t classes = kIsDx<Direction> ? shape.strides() : 1;
  if (tiles >= std::int64_t{1} << 31 || classes > 65535) return cudaErrorInvalidValue;
  const dim3 grid(static_cast<unsigned>(tiles), static_cast<unsigned>(classes));
  conv_forward_kernel<Direction, T>
      <<<grid, T::kThreads, kSharedBytes, static_cast<cudaStream_t>(args.stream)>>>(params);
  return cudaGetLastError();
}

/// Finds the tile of the schedule among kTiles, from kIndex on.
template <class Direction, class Element, int kIndex = 0>
int launch_named(const Params& params, const MatmulArgs& args, const conv::Shape& shape,
                 const Schedule& schedule) noexcept {
  if constexpr (kIndex == kTileCount) {
    return cudaErrorInvalidValue;
  } else {
    using T = TileAt<Element, kIndex>;
    if (schedule.tile_n != T::kBlockRow)
      return launch_named<Direction, Element, kIndex + 1>(params, args, shape, schedule);
    if (schedule.tile_m != T::kTokens || schedule.tile_k != T::kChunk) return cudaErrorInvalidValue;
    return launch_tile<Direction, T>(params, args, shape);
  }
}

template <class Direction, class Element>
int launch(const MatmulArgs& args, const conv::Shape& shape, const Schedule& schedule) noexcept {
  constexpr int kBytes = sizeof(typename Element::Bits);
  constexpr bool dx = kIsDx<Direction>;
  const IndexView& index = args.index;
  Params params{};
  params.a = args.a;
  params.values = args.values;
  params.list_begin = dx ? args.transposed.ccol : index.crow;
  params.along = dx ? args.transposed.row : index.col;
  params.slot = dx ? args.transposed.slot : nullptr;
  params.bias = args.bias;
  params.residual = args.residual;
  params.residual_stride = args.residual_stride;
  params.out = args.out;
  params.a_width = dx ? index.rows : index.cols;
  params.a_stride = args.a_stride;
  params.out_width = dx ? index.cols : index.rows;
  params.out_stride = args.out_stride;
  params.block_rows = static_cast<unsigned>(dx ? index.block_cols() : index.block_rows());
  const int side = dx ? index.block.rows : index.block.cols;
  params.side_log2 = std::countr_zero(static_cast<unsigned>(side));
  params.activation = args.activation;
  params.copy_a = mma::forward::aligned(args.a, args.a_stride * kBytes, 16);
  params.copy_b = mma::forward::aligned(args.values, 0, 16);
  params.store_vectors = mma::forward::aligned(args.out, args.out_stride * kBytes, 4 * kBytes);
  for (int i = 0; i < 3; ++i) params.axis[i] = shape.axis[i];
  params.images = shape.images;
  params.kernel_taps = static_cast<int>(shape.taps());
  params.few_taps = conv::few_taps(shape) && args.a_stride < std::int64_t{1} << 31;
  if (most_pixels<Direction>(shape) == 0 || params.block_rows == 0) return cudaSuccess;
  // The kernel would read blocks of another side wrongly.
  if (schedule.tile_n != (dx ? index.block.cols : index.block.rows)) return cudaErrorInvalidValue;
  return launch_named<Direction, Element>(params, args, shape, schedule);
}

}  // namespace sparseloom::kernels::cuda::conv_forward
