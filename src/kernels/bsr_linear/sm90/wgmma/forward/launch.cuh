// Host side of wgmma::forward: it makes the tensor maps, finds the instance that the schedule names, and
// launches it.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <type_traits>

#include "kernels/args.h"
#include "kernels/bsr_linear/sm90/wgmma/forward/entry.h"
#include "kernels/bsr_linear/sm90/wgmma/forward/kernel.cuh"
#include "kernels/bsr_linear/sm90/wgmma/split_bf16x3/blocks.h"
#include "kernels/shared/early_launch.cuh"
#include "kernels/shared/operands/tensor_map.h"
#include "runtime/cuda.h"

namespace sparseloom::kernels::cuda::wgmma::forward {

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// The matrices as TMA sees them: x [m, reduction], values [blocks * bm, bn], out [m, outputs].
struct Operands {
  TensorMapMatrix x, values, out, pre, residual;  // pre and residual have out's shape, if args has them
  TensorMapMatrix factor_values;                  // kGlu
};

template <class Direction, class Element>
Operands operands_of(const MatmulArgs& args) {
  constexpr std::int64_t kIn = Element::kBytes, kOut = size_of(Element::Out::kDtype);
  const IndexView& index = args.index;
  constexpr bool dx = Direction::kIsDx, tf32 = Element::kValueBytes == 4;
  const auto values_of = [&](const void* data, std::int64_t blocks) {
    return TensorMapMatrix{
        data, args.dtype, blocks * index.block.rows, index.block.cols, index.block.cols * kIn, tf32};
  };
  return {{args.a, args.dtype, args.m, dx ? index.rows : index.cols, args.a_stride * kIn, tf32},
          values_of(args.values, index.blocks),
          {args.out, Element::Out::kDtype, args.m, dx ? index.cols : index.rows, args.out_stride * kOut},
          {args.pre, Element::Out::kDtype, args.m, index.rows, args.pre_stride * kOut},
          {args.residual, Element::Out::kDtype, args.m, index.rows, args.residual_stride * kOut},
          values_of(args.factor_values, args.factor_index.blocks)};
}

/// Whether TMA can address all operands. It cannot if no block is stored or if the reduction is empty.
inline bool possible(const Operands& operands) {
  return tensor_map_possible(operands.x) && tensor_map_possible(operands.values) &&
         tensor_map_possible(operands.out) &&
         (operands.pre.data == nullptr || tensor_map_possible(operands.pre)) &&
         (operands.factor_values.data == nullptr || tensor_map_possible(operands.factor_values)) &&
         (operands.residual.data == nullptr || tensor_map_possible(operands.residual));
}

/// Fills in the tensor maps and the tile counts.
template <class T>
bool prepare(Params& params, const MatmulArgs& args, const Operands& operands, const Schedule& schedule,
             std::size_t l2_bytes) noexcept {
  // With an order, any block row may come last, and the matrix's ragged last block row may come earlier; a
  // glu counts the block rows of both weights. Outputs are then counted in whole block rows: where a tile is
  // half a block row, a count of out_width could drop the second half of the last block row.
  const std::int64_t outputs = params.ordered || T::kGlu ? std::int64_t{params.block_rows} * (T::kGlu ? 2 : 1)
                                                               << params.block_row_log2
                                                         : params.out_width;
  const std::int64_t m_tiles = ceil_div(args.m, T::kTokens), groups = ceil_div(outputs, T::kOutputs);
  if (m_tiles * groups >= std::int64_t{1} << 31) return false;
  params.m_tiles = static_cast<unsigned>(m_tiles);
  params.groups = static_cast<unsigned>(groups);
  params.chunk =
      schedule.chunk_n > 0 ? std::min(static_cast<unsigned>(schedule.chunk_n), params.groups) : params.groups;
  params.stride = static_cast<unsigned>(std::max(schedule.stride_n, 0)) % params.groups;
  params.tiles = static_cast<unsigned>(m_tiles * groups);
  // All M tiles read the values, so L2 should keep them. All groups read x too, but L2 must keep it only if
  // block rows of unlike length have brought thread blocks out of step; keeping it measured faster there, and
  // slightly slower elsewhere. Outputs are not read again here; if L2 has ample room for them, they stay for
  // the next kernel.
  const std::int64_t out_bytes = args.m * params.out_width * T::kOutBytes;
  params.x_policy = args.uneven_block_rows ? ptx::L2Policy::evict_last : ptx::L2Policy::evict_normal;
  params.values_policy = ptx::L2Policy::evict_last;
  params.out_policy = out_bytes > static_cast<std::int64_t>(l2_bytes / 4) ? ptx::L2Policy::evict_first
                                                                          : ptx::L2Policy::evict_normal;
  // kPairedRows: two rows of the values are one row of the copy.
  const auto in_copies = [](TensorMapMatrix values) {
    values.height /= T::kRowsOfOne;
    values.width *= T::kRowsOfOne;
    values.stride_bytes *= T::kRowsOfOne;
    return values;
  };
  constexpr TensorMapBox kValuesBox{T::kBoxRows / T::kRowsOfOne, T::kBoxColumns * T::kRowsOfOne,
                                    T::kBoxRowBytes * T::kRowsOfOne};
  constexpr TensorMapBox kOutBox{T::kStoreRows, T::kStoreColumns, T::kStoreRowBytes};
  return encode_tensor_map(params.x, operands.x, {T::kTokens, T::kKTile, T::kRowBytes}) &&
         (T::Element::kBf16x3 || encode_tensor_map(params.values, in_copies(operands.values), kValuesBox)) &&
         (!T::kGlu ||
          encode_tensor_map(params.factor_values, in_copies(operands.factor_values), kValuesBox)) &&
         encode_tensor_map(params.out, operands.out, kOutBox) &&
         (!params.store_pre || encode_tensor_map(params.pre, operands.pre, kOutBox)) &&
         (!T::kAddsResidual || encode_tensor_map(params.residual, operands.residual, kOutBox));
}

template <class T>
int launch_tile(Params& params, const MatmulArgs& args, const Operands& operands,
                const Schedule& schedule) noexcept {
  if (schedule.tile_m != T::kTokens || schedule.tile_n != T::kOutputs || schedule.tile_k != T::kKTile ||
      schedule.swap_ab != T::kSwapAB)
    return cudaErrorInvalidValue;
  const runtime::CudaDevice& device = runtime::cuda_device(args.device);
  if (!prepare<T>(params, args, operands, schedule, device.l2_bytes)) return cudaErrorInvalidValue;
  constexpr int kSharedBytes = sizeof(SharedStorage<T>);
  static_assert(kSharedBytes <= 227 * 1024 && T::kBlocksPerSm * (kSharedBytes + 1024) <= 228 * 1024,
                "exceeds the 227 KB of shared memory of sm_90");
  // Two thread blocks of the narrow tile need the SM's entire shared memory.
  constexpr int kCarveout =
      T::kBlocksPerSm > 1 ? cudaSharedmemCarveoutMaxShared : cudaSharedmemCarveoutDefault;
  if (const cudaError_t status =
          allow_shared_memory<wgmma_forward_kernel<T>>(kSharedBytes, args.device, kCarveout);
      status != cudaSuccess)
    return status;
  // Tiles adds these per step of the grid.
  const unsigned grid = std::min(params.tiles, static_cast<unsigned>(std::max(schedule.grid, 1)));
  params.grid_m_tiles = grid / params.groups;
  params.grid_rest = grid % params.groups;
  params.grid_turn =
      static_cast<unsigned>(std::uint64_t{params.grid_m_tiles} * params.stride % params.groups);
  // With an early launch, thread blocks begin while the previous kernel's end. They land on other SMs than
  // those of a separate launch and lose step. With many tiles that measured slower, although it saves a
  // microsecond; with one tile per thread block it measured faster.
  const bool early = params.tiles <= grid;
  return launch_kernel({.grid = grid,
                        .block = T::kThreads,
                        .shared_bytes = kSharedBytes,
                        .stream = static_cast<cudaStream_t>(args.stream),
                        .early = early},
                       wgmma_forward_kernel<T>, params);
}

/// Finds the instance with the schedule's tile and epilogue. The call's operands select it too: `pre` needs
/// epilogue warps, and a scale per token is applied at the end of a tile.
template <class Direction, class Element, int kSlice, int kPart>
int launch_slice(Params& params, const MatmulArgs& args, const Operands& operands,
                 const Schedule& schedule) noexcept {
  constexpr int kHalf = kSlice < 64 ? kSlice : 64;  // at side 128, half a block row
  const bool wide = schedule.tile_n == kWideTile.outputs;
  if constexpr (Element::kBf16x3) {
    return wide ? launch_tile<Tile<Direction, Element, HalfWide, kSlice, kPart>>(params, args, operands,
                                                                                 schedule)
                : launch_tile<Tile<Direction, Element, HalfNarrow, kHalf, kPart>>(params, args, operands,
                                                                                  schedule);
  } else if (wide) {
    using Plain = Tile<Direction, Element, Wide, kSlice, kPart>;
    if constexpr (std::is_same_v<Direction, Forward> && Plain::kMayHaveEpilogueWarps) {
      if (params.store_pre)
        return launch_tile<Tile<ForwardWithEpilogueWarps, Element, WideWithEpilogueWarps, kSlice, kPart>>(
            params, args, operands, schedule);
    }
    if constexpr (std::is_same_v<Direction, Forward> && Plain::kDeferredStore) {
      bool scale_per_token = false;
      if constexpr (Element::kScaled) scale_per_token = params.x_scale_each;
      if (schedule.stores_at_end || scale_per_token)
        return launch_tile<Tile<ForwardActivated, Element, Wide, kSlice, kPart>>(params, args, operands,
                                                                                 schedule);
      if (params.activation != Activation::none)
        return cudaErrorInvalidValue;  // a deferred store applies none
    } else if (schedule.stores_at_end) {
      return cudaErrorInvalidValue;
    }
    return launch_tile<Plain>(params, args, operands, schedule);
  } else if constexpr (Direction::kGlu && kHalf == 64) {
    return cudaErrorInvalidValue;  // the tile has one block row
  } else {
    return launch_tile<Tile<Direction, Element, Narrow, kHalf, kPart>>(params, args, operands, schedule);
  }
}

/// Selects the extent of a part and of a K tile.
template <class Direction, class Element, int kSlice>
int launch_block_row(Params& params, const MatmulArgs& args, const Operands& operands,
                     const Schedule& schedule) noexcept {
  constexpr int kWhole = 128 / Element::kBytes;  // a part as wide as a K tile
  if constexpr (Element::kBytes < 4) {
    if (1 << params.side_log2 < kWhole) {
      if constexpr (kSlice == 32 && Element::kBytes == 2) {
        if (schedule.tile_k == kWhole / 2)
          return launch_slice<Direction, Narrowed<Element>, kSlice, kWhole / 2>(params, args, operands,
                                                                                schedule);
      }
      return launch_slice<Direction, Element, kSlice, kWhole / 2>(params, args, operands, schedule);
    }
  }
  return launch_slice<Direction, Element, kSlice, kWhole>(params, args, operands, schedule);
}

/// Checks the operands, fills in the parameters, and selects the slice by the block's extent along the
/// outputs.
template <class Direction, class Element>
int launch(const MatmulArgs& args, const Schedule& schedule) noexcept {
  constexpr bool dx = Direction::kIsDx;
  constexpr int kLeast = Element::kBytes == 1 ? 64 : 32;  // least side of a block
  const IndexView& index = args.index;
  const Operands operands = operands_of<Direction, Element>(args);
  if (args.m == 0 || operands.out.width == 0) return cudaSuccess;
  if (!possible(operands)) return cudaErrorInvalidValue;
  const int block_row_side = dx ? index.block.cols : index.block.rows,
            side = dx ? index.block.rows : index.block.cols;
  // Forward walks the lists of W's block rows; dx walks those of its block columns in the transposed index.
  Params params{};
  params.list_begin = dx ? args.transposed.ccol : index.crow;
  params.list_end = args.block_row_end != nullptr ? args.block_row_end : params.list_begin + 1;
  params.along = dx ? args.transposed.row : index.col;
  params.slot = dx ? args.transposed.slot : nullptr;
  params.bias = dx ? nullptr : args.bias;
  params.block_rows = static_cast<std::int32_t>(dx ? index.block_cols() : index.block_rows());
  params.out_width = static_cast<std::int32_t>(operands.out.width);
  params.block_row_log2 = std::countr_zero(static_cast<unsigned>(block_row_side));
  params.side_log2 = std::countr_zero(static_cast<unsigned>(side));
  params.activation = dx ? Activation::none : args.activation;
  params.store_pre = args.pre != nullptr;
  if constexpr (Direction::kGlu) {
    params.factor_begin = args.factor_index.crow;
    params.factor_along = args.factor_index.col;
    params.factor_bias = args.factor_bias;
  } else if (args.block_row_order != nullptr && params.block_rows <= plan::kMostOrderedBlockRows) {
    params.ordered = true;
    std::copy_n(args.block_row_order, params.block_rows, params.order);
  }
  if constexpr (Element::kBf16x3) {
    params.planes = args.workspace;
    params.kind = bf16x3_kinds(args.workspace, index.blocks, index.block);
    params.slot = args.transposed.slot;
    params.exact = static_cast<const float*>(args.values);
    params.block_row_step = params.slot != nullptr ? 1 : side;
    params.step = params.slot != nullptr ? block_row_side : 1;
  }
  if constexpr (Element::kScaled) {
    params.x_scale = args.a_scale, params.x_scale_each = args.a_scale_each;
    params.out_scale = args.w_scale, params.out_scale_each = args.w_scale_each;
    params.tokens = static_cast<std::int32_t>(args.m);
  }
  if (side < kLeast || side > 128) return cudaErrorInvalidValue;
  switch (block_row_side) {
    case 32:
      if constexpr (kLeast > 32)
        return cudaErrorInvalidValue;
      else
        return launch_block_row<Direction, Element, 32>(params, args, operands, schedule);
    case 64: return launch_block_row<Direction, Element, 64>(params, args, operands, schedule);
    case 128:
      if constexpr (Direction::kGlu)
        return cudaErrorInvalidValue;  // two of them are wider than a tile
      else
        return launch_block_row<Direction, Element, 128>(params, args, operands, schedule);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace sparseloom::kernels::cuda::wgmma::forward
