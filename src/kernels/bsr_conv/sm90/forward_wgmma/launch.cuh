// Host side of wgmma_conv: makes the tensor maps, finds the instance that the schedule names, and launches
// it.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "kernels/args.h"
#include "kernels/bsr_conv/sm90/forward_wgmma/kernel.cuh"
#include "kernels/bsr_linear/sm90/wgmma/forward/launch.cuh"
#include "kernels/shared/early_launch.cuh"
#include "runtime/cuda.h"

namespace sparseloom::kernels::cuda::wgmma_conv {

using wgmma::forward::Operands;

template <class T>
int launch_tile(Params& params, const MatmulArgs& args, const PixelTensor& pixels, const Operands& operands,
                const Schedule& schedule) noexcept {
  if (schedule.tile_m != T::kTokens || schedule.tile_n != T::kOutputs || schedule.tile_k != T::kKTile ||
      schedule.swap_ab != T::kSwapAB)
    return cudaErrorInvalidValue;
  const runtime::CudaDevice& device = runtime::cuda_device(args.device);
  if (!wgmma::forward::prepare<T>(params, args, operands, schedule, device.l2_bytes))
    return cudaErrorInvalidValue;
  if (!encode_pixel_map(params.x, pixels, T::kTokens, T::kKTile)) return cudaErrorInvalidValue;
  constexpr int kSharedBytes = sizeof(wgmma::forward::SharedStorage<T>);
  constexpr int kCarveout =
      T::kBlocksPerSm > 1 ? cudaSharedmemCarveoutMaxShared : cudaSharedmemCarveoutDefault;
  if (const cudaError_t status =
          allow_shared_memory<wgmma_conv_kernel<T>>(kSharedBytes, args.device, kCarveout);
      status != cudaSuccess)
    return status;
  // Tiles adds these per step of the grid.
  const unsigned grid = std::min(params.tiles, static_cast<unsigned>(std::max(schedule.grid, 1)));
  params.grid_m_tiles = grid / params.groups;
  params.grid_rest = grid % params.groups;
  params.grid_turn =
      static_cast<unsigned>(std::uint64_t{params.grid_m_tiles} * params.stride % params.groups);
  return launch_kernel({.grid = grid,
                        .block = T::kThreads,
                        .shared_bytes = kSharedBytes,
                        .stream = static_cast<cudaStream_t>(args.stream),
                        .early = params.tiles <= grid},
                       wgmma_conv_kernel<T>, params);
}

/// Finds the instance with the schedule's tile and epilogue, for square blocks of this side.
template <class Direction, class Element, int kSide>
int launch_side(Params& params, const MatmulArgs& args, const PixelTensor& pixels, const Operands& operands,
                const Schedule& schedule) noexcept {
  constexpr int kPart = kSide < 64 ? kSide : 64;  // extent in a K tile; in narrow tiles also the widest slice
  using Plain = wgmma::forward::Tile<Direction, Element, wgmma::forward::Wide, kSide, kPart>;
  using Narrow = wgmma::forward::Tile<Direction, Element, wgmma::forward::Narrow, kPart, kPart>;
  if (schedule.tile_n == Narrow::kOutputs)
    return launch_tile<Narrow>(params, args, pixels, operands, schedule);
  if constexpr (Plain::kDeferredStore && !Plain::kIsDx) {
    if (schedule.stores_at_end)
      return launch_tile<wgmma::forward::Tile<wgmma::forward::ForwardActivated, Element, wgmma::forward::Wide,
                                              kSide, kPart>>(params, args, pixels, operands, schedule);
    if (params.activation != Activation::none) return cudaErrorInvalidValue;  // a deferred store applies none
  }
  return launch_tile<Plain>(params, args, pixels, operands, schedule);
}

template <class Direction, class Element>
int launch(const MatmulArgs& args, const conv::Shape& shape, const Schedule& schedule) noexcept {
  constexpr bool dx = Direction::kIsDx;
  const IndexView& index = args.index;
  if (args.m == 0 || (dx ? index.cols : index.rows) == 0) return cudaSuccess;
  Operands operands = wgmma::forward::operands_of<Direction, Element>(args);
  operands.values.height *= shape.taps();
  PixelTensor pixels = pixel_tensor(shape, dx);
  pixels.data = args.a;
  pixels.dtype = args.dtype;
  pixels.channels = dx ? index.rows : index.cols;
  pixels.stride_bytes = args.a_stride * Element::kBytes;
  if (!wgmma::forward::possible(operands) || !pixel_map_possible(pixels)) return cudaErrorInvalidValue;
  if (index.block.rows != index.block.cols || args.residual != nullptr || args.pre != nullptr ||
      (dx && args.activation != Activation::none))
    return cudaErrorInvalidValue;
  Params params{};
  params.list_begin = dx ? args.transposed.ccol : index.crow;
  params.list_end = params.list_begin + 1;
  params.along = dx ? args.transposed.row : index.col;
  params.slot = dx ? args.transposed.slot : nullptr;
  params.bias = args.bias;
  params.block_rows = static_cast<std::int32_t>(dx ? index.block_cols() : index.block_rows());
  params.out_width = static_cast<std::int32_t>(operands.out.width);
  params.block_row_log2 = params.side_log2 = std::countr_zero(static_cast<unsigned>(index.block.rows));
  params.activation = args.activation;
  if (args.block_row_order != nullptr && params.block_rows <= plan::kMostOrderedBlockRows) {
    params.ordered = true;
    std::copy_n(args.block_row_order, params.block_rows, params.order);
  }
  params.walk = pixel_walk(shape, dx, pixels.deep);
  switch (index.block.rows) {
    case 32: return launch_side<Direction, Element, 32>(params, args, pixels, operands, schedule);
    case 64: return launch_side<Direction, Element, 64>(params, args, pixels, operands, schedule);
    case 128: return launch_side<Direction, Element, 128>(params, args, pixels, operands, schedule);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace sparseloom::kernels::cuda::wgmma_conv
