// Host side of wgmma_dds: tensor maps, which tile, and the launch.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <type_traits>

#include "kernels/args.h"
#include "kernels/cuda/early_launch.cuh"
#include "kernels/cuda/sm90/split_blocks.h"
#include "kernels/cuda/sm90/tensor_map.h"
#include "kernels/cuda/sm90/wgmma_dds.cuh"
#include "kernels/cuda/sm90/wgmma_dds.h"
#include "runtime/cuda.h"

namespace sparseloom::kernels::cuda::wgmma_dds {

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// The matrices as TMA sees them: [m, reduction], [blocks * bm, bn], [m, outputs].
struct Operands {
  TensorMapMatrix x, values, out, pre, residual;  // pre, residual: as out, when args has them
};

template <class Direction, class Element>
Operands operands_of(const MatmulArgs& args) {
  constexpr std::int64_t kIn = Element::kBytes, kOut = size_of(Element::Out::kDtype);
  const IndexView& index = args.index;
  constexpr bool dx = Direction::kIsDx, tf32 = Element::kValueBytes == 4;
  return {{args.a, args.dtype, args.m, dx ? index.rows : index.cols, args.a_stride * kIn, tf32},
          {args.values, args.dtype, index.blocks * index.block.rows, index.block.cols, index.block.cols * kIn,
           tf32},
          {args.out, Element::Out::kDtype, args.m, dx ? index.cols : index.rows, args.out_stride * kOut},
          {args.pre, Element::Out::kDtype, args.m, index.rows, args.pre_stride * kOut},
          {args.residual, Element::Out::kDtype, args.m, index.rows, args.residual_stride * kOut}};
}

/// Whether TMA can address them; not when no block is stored, or there is nothing to sum over.
inline bool possible(const Operands& operands) {
  return tensor_map_possible(operands.x) && tensor_map_possible(operands.values) &&
         tensor_map_possible(operands.out) &&
         (operands.pre.data == nullptr || tensor_map_possible(operands.pre)) &&
         (operands.residual.data == nullptr || tensor_map_possible(operands.residual));
}

inline std::int64_t stored_blocks(const MatmulArgs& args) {
  return args.likely_blocks > 0 ? args.likely_blocks : args.index.blocks;
}

/// Fills the maps and the tile counts. places: tiles at a time.
template <class T>
bool prepare(Params& params, const MatmulArgs& args, const Operands& operands, unsigned places,
             std::size_t l2_bytes) noexcept {
  // An ordered line may be any but the ragged one where the order ends: a tile of half a line has to reach
  // its second half, which of the matrix's own last line lies outside.
  const std::int64_t outputs =
      params.ordered ? std::int64_t{params.lines} << params.line_log2 : params.out_width;
  const std::int64_t panels = ceil_div(args.m, T::kTokens), groups = ceil_div(outputs, T::kOutputs);
  if (panels * groups >= std::int64_t{1} << 31) return false;
  params.panels = static_cast<unsigned>(panels);
  params.groups = static_cast<unsigned>(groups);
  const std::int64_t values_bytes =
      stored_blocks(args) * args.index.block_elements() * T::Element::kValueBytes;
  params.chunk = chunk_of(
      params.panels, params.groups, places,
      {values_bytes, args.m * operands.x.width * T::Element::kBytes, static_cast<std::int64_t>(l2_bytes)});
  params.tiles = static_cast<unsigned>(panels * groups);
  // Values are read by all panels. X is too, but only by thread blocks that lines of unlike length have
  // brought out of step is it read so late that it has to be kept: 2 to 8 % there, half a percent lost
  // elsewhere. Outputs are not read again; those that L2 holds with room to spare stay for the next kernel.
  const std::int64_t out_bytes = args.m * params.out_width * T::kOutBytes;
  params.x_policy = args.uneven_lines ? ptx::L2Policy::evict_last : ptx::L2Policy::evict_normal;
  params.values_policy = ptx::L2Policy::evict_last;
  params.out_policy = out_bytes > static_cast<std::int64_t>(l2_bytes / 4) ? ptx::L2Policy::evict_first
                                                                          : ptx::L2Policy::evict_normal;
  TensorMapMatrix values = operands.values;
  values.height /= T::kRowsOfOne;
  values.width *= T::kRowsOfOne;
  values.stride_bytes *= T::kRowsOfOne;
  constexpr TensorMapBox kValuesBox{T::kBoxRows / T::kRowsOfOne, T::kBoxColumns * T::kRowsOfOne,
                                    T::kBoxRowBytes * T::kRowsOfOne};
  constexpr TensorMapBox kOutBox{T::kStoreRows, T::kStoreColumns, T::kStoreRowBytes};
  return encode_tensor_map(params.x, operands.x, {T::kTokens, T::kSlab, T::kRowBytes}) &&
         (T::Element::kSplit || encode_tensor_map(params.values, values, kValuesBox)) &&
         encode_tensor_map(params.out, operands.out, kOutBox) &&
         (!params.store_pre || encode_tensor_map(params.pre, operands.pre, kOutBox)) &&
         (!T::kAddsResidual || encode_tensor_map(params.residual, operands.residual, kOutBox));
}

template <class T>
int launch_tile(Params& params, const MatmulArgs& args, const Operands& operands) noexcept {
  const runtime::CudaDevice& device = runtime::cuda_device(args.device);
  const unsigned places = static_cast<unsigned>(std::max(device.multiprocessors, 1) * T::kBlocksPerSm);
  if (!prepare<T>(params, args, operands, places, device.l2_bytes)) return kCannotTake;
  constexpr int kSharedBytes = sizeof(SharedStorage<T>);
  static_assert(kSharedBytes <= 227 * 1024 && T::kBlocksPerSm * (kSharedBytes + 1024) <= 228 * 1024,
                "what sm_90 has");
  // Two thread blocks of the narrow tile take all there is.
  constexpr int kCarveout =
      T::kBlocksPerSm > 1 ? cudaSharedmemCarveoutMaxShared : cudaSharedmemCarveoutDefault;
  if (const cudaError_t status =
          allow_shared_memory<wgmma_dds_kernel<T>>(kSharedBytes, args.device, kCarveout);
      status != cudaSuccess)
    return status;
  unsigned grid = std::min(params.tiles, places);
  params.stride = 1;
  if constexpr (T::kBlocksPerSm == 1) {
    const Walk walk = walk_over(params.panels, params.groups, places);
    grid = walk.grid;
    params.stride = walk.stride;
  }
  params.stride %= params.groups;
  params.grid_panels = grid / params.groups;
  params.grid_rest = grid % params.groups;
  params.grid_turn = static_cast<unsigned>(std::uint64_t{params.grid_panels} * params.stride % params.groups);
  // Thread blocks that begin while others end take other multiprocessors than those of a launch of its own,
  // and lose step: 1 to 4 % of products of many tiles, where the microsecond it saves is less. Of one tile
  // each, it is a tenth.
  const bool early = params.tiles <= places;
  return launch_kernel({.grid = grid,
                        .block = T::kThreads,
                        .shared_bytes = kSharedBytes,
                        .stream = static_cast<cudaStream_t>(args.stream),
                        .early = early},
                       wgmma_dds_kernel<T>, params);
}

/// Of 8-bit operands: whether a tile is scaled and stored at its end. It is where tokens have scales of their
/// own, and in blocks of 64 where tiles are long: 8192 x 4096 x 4096 on an H200 took 6 % longer at density .1
/// that way, 2 % less at .2.
template <class Element, int kSlice>
bool scales_at_end(const Params& params, const MatmulArgs& args) {
  if constexpr (!Element::kScaled) return false;
  const std::int64_t cells = std::int64_t{args.index.block_rows()} * args.index.block_cols();
  return params.x_scale_each || (kSlice < 128 && stored_blocks(args) * 20 > cells * 3);
}

template <class Direction, class Element, int kSlice, int kPart>
int launch_slice(Params& params, const MatmulArgs& args, const Operands& operands, TileSize size) noexcept {
  if constexpr (Element::kSplit) {
    if (size == TileSize::wide)
      return launch_tile<Tile<Direction, Element, HalfWide, kSlice, kPart>>(params, args, operands);
    return launch_tile<Tile<Direction, Element, HalfNarrow, (kSlice < 64 ? kSlice : 64), kPart>>(params, args,
                                                                                                 operands);
  } else if (size == TileSize::wide) {
    using Plain = Tile<Direction, Element, Wide, kSlice, kPart>;
    if constexpr (std::is_same_v<Direction, Forward> && Plain::kFinishable) {
      if (params.store_pre)
        return launch_tile<Tile<ForwardFinished, Element, WideFinished, kSlice, kPart>>(params, args,
                                                                                        operands);
    }
    if constexpr (std::is_same_v<Direction, Forward> && Plain::kStoresLate) {
      if (params.activation != Activation::none || scales_at_end<Element, kSlice>(params, args))
        return launch_tile<Tile<ForwardActivated, Element, Wide, kSlice, kPart>>(params, args, operands);
    }
    return launch_tile<Plain>(params, args, operands);
  } else {  // of side 128 half a line
    return launch_tile<Tile<Direction, Element, Narrow, (kSlice < 64 ? kSlice : 64), kPart>>(params, args,
                                                                                             operands);
  }
}

template <class Direction, class Element, int kSlice>
int launch_line(Params& params, const MatmulArgs& args, const Operands& operands, TileSize size) noexcept {
  constexpr int kWhole = 128 / Element::kBytes;  // a part as wide as a slab
  if constexpr (Element::kBytes < 4) {
    if (1 << params.side_log2 < kWhole) {
      if constexpr (kSlice == 32 && Element::kBytes == 2) {
        const IndexView& index = args.index;
        if (narrow_slabs(index.block, stored_blocks(args),
                         std::int64_t{index.block_rows()} * index.block_cols())) {
          return launch_slice<Direction, Narrowed<Element>, kSlice, kWhole / 2>(params, args, operands, size);
        }
      }
      return launch_slice<Direction, Element, kSlice, kWhole / 2>(params, args, operands, size);
    }
  }
  return launch_slice<Direction, Element, kSlice, kWhole>(params, args, operands, size);
}

template <class Direction, class Element>
int launch(const MatmulArgs& args, TileSize size) noexcept {
  constexpr bool dx = Direction::kIsDx;
  constexpr int kLeast = Element::kBytes == 1 ? 64 : 32;  // side of a block
  const IndexView& index = args.index;
  const Operands operands = operands_of<Direction, Element>(args);
  if (args.m == 0 || operands.out.width == 0) return cudaSuccess;
  if (!possible(operands)) return kCannotTake;
  const int line_side = dx ? index.block.cols : index.block.rows,
            side = dx ? index.block.rows : index.block.cols;
  Params params{};
  params.list_begin = dx ? args.transposed.ccol : index.crow;
  params.list_end = args.line_end != nullptr ? args.line_end : params.list_begin + 1;
  params.along = dx ? args.transposed.row : index.col;
  params.slot = dx ? args.transposed.slot : nullptr;
  params.bias = dx ? nullptr : args.bias;
  params.lines = static_cast<std::int32_t>(dx ? index.block_cols() : index.block_rows());
  params.out_width = static_cast<std::int32_t>(operands.out.width);
  params.line_log2 = std::countr_zero(static_cast<unsigned>(line_side));
  params.side_log2 = std::countr_zero(static_cast<unsigned>(side));
  params.activation = dx ? Activation::none : args.activation;
  params.store_pre = args.pre != nullptr;
  if (args.line_order != nullptr && params.lines <= plan::kMostOrderedLines) {
    params.ordered = true;
    std::copy_n(args.line_order, params.lines, params.order);
  }
  if constexpr (Element::kSplit) {
    params.planes = args.workspace;
    params.kind = split_kinds(args.workspace, index.blocks, index.block);
    params.slot = args.transposed.slot;
    params.exact = static_cast<const float*>(args.values);
    params.line_step = params.slot != nullptr ? 1 : side;
    params.step = params.slot != nullptr ? line_side : 1;
  }
  if constexpr (Element::kScaled) {
    params.x_scale = args.a_scale, params.x_scale_each = args.a_scale_each;
    params.out_scale = args.w_scale, params.out_scale_each = args.w_scale_each;
    params.tokens = static_cast<std::int32_t>(args.m);
  }
  if (side < kLeast || side > 128) return cudaErrorInvalidValue;
  switch (line_side) {
    case 32:
      if constexpr (kLeast > 32)
        return cudaErrorInvalidValue;
      else
        return launch_line<Direction, Element, 32>(params, args, operands, size);
    case 64: return launch_line<Direction, Element, 64>(params, args, operands, size);
    case 128: return launch_line<Direction, Element, 128>(params, args, operands, size);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace sparseloom::kernels::cuda::wgmma_dds
