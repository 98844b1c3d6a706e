// Host side of wgmma_dds: tensor maps, which tile, and the launch.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>

#include "kernels/args.h"
#include "kernels/cuda/sm90/tensor_map.h"
#include "kernels/cuda/sm90/wgmma_dds.cuh"
#include "kernels/cuda/sm90/wgmma_dds.h"
#include "runtime/cuda.h"

namespace sparseloom::kernels::cuda::wgmma_dds {

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// The matrices as TMA sees them: [m, reduction], [blocks * bm, bn], [m, outputs].
struct Operands {
  TensorMapMatrix x, values, out;
};

inline Operands operands_of(const MatmulArgs& args) {
  const IndexView& index = args.index;
  const bool dx = args.direction == Direction::dx;
  return {{args.a, args.dtype, args.m, dx ? index.rows : index.cols, args.a_stride * 2},
          {args.values, args.dtype, index.blocks * index.block.rows, index.block.cols, index.block.cols * 2},
          {args.out, args.dtype, args.m, dx ? index.cols : index.rows, args.out_stride * 2}};
}

/// Fills the maps and the tile counts.
template <class T>
bool prepare(Params& params, const MatmulArgs& args, const Operands& operands, std::size_t l2_bytes) noexcept {
  const std::int64_t panels = ceil_div(args.m, T::kTokens), groups = ceil_div(params.out_width, T::kOutputs);
  if (panels * groups >= std::int64_t{1} << 31) return false;
  // Half of L2 for the values that all panels read, the rest for the panels under way and the outputs.
  const std::int64_t budget = std::max<std::int64_t>(static_cast<std::int64_t>(l2_bytes / 2), std::int64_t{8} << 20);
  const std::int64_t chunks =
      std::clamp<std::int64_t>(ceil_div(args.index.blocks * args.index.block_elements() * 2, budget), 1, groups);
  params.panels = static_cast<unsigned>(panels);
  params.groups = static_cast<unsigned>(groups);
  params.chunk = static_cast<unsigned>(ceil_div(groups, chunks));
  params.tiles = static_cast<unsigned>(panels * groups);
  return encode_tensor_map(params.x, operands.x, {T::kTokens, kSlab, 128}) &&
         encode_tensor_map(params.values, operands.values, {T::kBoxRows, T::kBoxColumns, T::kBoxColumns * 2}) &&
         encode_tensor_map(params.out, operands.out, {T::kStoreRows, T::kStoreColumns, 128});
}

template <class T>
int launch_tile(Params& params, const MatmulArgs& args, const Operands& operands) noexcept {
  const runtime::CudaDevice& device = runtime::cuda_device(args.device);
  if (!prepare<T>(params, args, operands, device.l2_bytes)) return kCannotMap;
  constexpr int kSharedBytes = sizeof(SharedStorage<T>);
  static_assert(kSharedBytes <= 227 * 1024 && T::kBlocksPerSm * (kSharedBytes + 1024) <= 228 * 1024, "what sm_90 has");
  static std::atomic<std::uint64_t> prepared{0};  // devices, one bit each; beyond 63 every launch sets the attribute anew
  const std::uint64_t bit = args.device >= 0 && args.device < 64 ? std::uint64_t{1} << args.device : 0;
  if ((prepared.load(std::memory_order_relaxed) & bit) == 0) {
    cudaError_t status = cudaFuncSetAttribute(wgmma_dds_kernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
    if (status == cudaSuccess) {  // two thread blocks of the narrow tile take all there is
      status =
          cudaFuncSetAttribute(wgmma_dds_kernel<T>, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
    }
    if (status != cudaSuccess) {
      cudaGetLastError();  // not for the next caller
      return status;
    }
    prepared.fetch_or(bit, std::memory_order_relaxed);
  }
  const unsigned places = static_cast<unsigned>(std::max(device.multiprocessors, 1) * T::kBlocksPerSm);
  wgmma_dds_kernel<T>
      <<<std::min(params.tiles, places), T::kThreads, kSharedBytes, static_cast<cudaStream_t>(args.stream)>>>(params);
  return cudaGetLastError();
}

/// Waves of tiles, weighted by what a multiprocessor reads for one slab of its tiles: the time of a product goes with it.
template <class T>
std::int64_t bytes_in_turn(const Params& params, const MatmulArgs& args, int multiprocessors) {
  const std::int64_t tiles = ceil_div(args.m, T::kTokens) * ceil_div(params.out_width, T::kOutputs);
  const std::int64_t rounds = ceil_div(tiles, std::max(multiprocessors, 1));
  return rounds * T::kStageBytes;
}

template <class Direction, class Element, int kSlice, int kPart>
int launch_slice(Params& params, const MatmulArgs& args, const Operands& operands) noexcept {
  using WideTile = Tile<Direction, Element, Wide, kSlice, kPart>;
  using NarrowTile = Tile<Direction, Element, Narrow, (kSlice < 64 ? kSlice : 64), kPart>;  // side 128: half a line
  const int multiprocessors = runtime::cuda_device(args.device).multiprocessors;
  const bool wide =
      bytes_in_turn<WideTile>(params, args, multiprocessors) <= bytes_in_turn<NarrowTile>(params, args, multiprocessors);
  return wide ? launch_tile<WideTile>(params, args, operands) : launch_tile<NarrowTile>(params, args, operands);
}

template <class Direction, class Element, int kSlice>
int launch_line(Params& params, const MatmulArgs& args, const Operands& operands) noexcept {
  return params.side_log2 == 5 ? launch_slice<Direction, Element, kSlice, 32>(params, args, operands)
                               : launch_slice<Direction, Element, kSlice, 64>(params, args, operands);
}

template <class Direction, class Element>
int launch(const MatmulArgs& args) noexcept {
  constexpr bool dx = Direction::kIsDx;
  const IndexView& index = args.index;
  const Operands operands = operands_of(args);
  if (args.m == 0 || operands.out.width == 0) return cudaSuccess;
  if (!tensor_map_possible(operands.x) || !tensor_map_possible(operands.values) || !tensor_map_possible(operands.out)) {
    return kCannotMap;  // also when no block is stored, or there is nothing to sum over
  }
  const int line_side = dx ? index.block.cols : index.block.rows, side = dx ? index.block.rows : index.block.cols;
  Params params{};
  params.list_begin = dx ? args.transposed.ccol : index.crow;
  params.along = dx ? args.transposed.row : index.col;
  params.slot = dx ? args.transposed.slot : nullptr;
  params.bias = dx ? nullptr : args.bias;
  params.lines = static_cast<std::int32_t>(dx ? index.block_cols() : index.block_rows());
  params.out_width = static_cast<std::int32_t>(operands.out.width);
  params.line_log2 = std::countr_zero(static_cast<unsigned>(line_side));
  params.side_log2 = std::countr_zero(static_cast<unsigned>(side));
  params.activation = dx ? Activation::none : args.activation;
  if (side != 32 && side != 64 && side != 128) return cudaErrorInvalidValue;
  switch (line_side) {
    case 32: return launch_line<Direction, Element, 32>(params, args, operands);
    case 64: return launch_line<Direction, Element, 64>(params, args, operands);
    case 128: return launch_line<Direction, Element, 128>(params, args, operands);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace sparseloom::kernels::cuda::wgmma_dds
