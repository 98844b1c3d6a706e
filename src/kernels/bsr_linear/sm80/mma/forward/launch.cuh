// Host side of mma::forward: looks up the instance that a schedule names, and launches it.
#pragma once

#include <atomic>
#include <bit>
#include <cstdint>

#include "kernels/args.h"
#include "kernels/bsr_linear/sm80/mma/forward/kernel.cuh"
#include "kernels/bsr_linear/sm80/mma/forward/tile.cuh"
#include "kernels/bsr_linear/sm80/mma/forward/tiles.h"

namespace sparseloom::kernels::cuda::mma::forward {

/// The tile kTiles[kIndex] of an element type.
template <class Element, int kIndex>
using TileAt =
    Tile<Element, kTiles[kIndex].block_row, kTiles[kIndex].tokens, kTiles[kIndex].chunk_bytes,
         kTiles[kIndex].warps_m, kTiles[kIndex].warps_n, kTiles[kIndex].stages, kTiles[kIndex].blocks_per_sm>;

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

inline bool aligned(const void* pointer, std::int64_t row_bytes, unsigned alignment) {
  return reinterpret_cast<std::uintptr_t>(pointer) % alignment == 0 && row_bytes % alignment == 0;
}

template <class Direction, class T, class Crew>
int launch_tile(Params params, const Schedule& schedule, const MatmulArgs& args) noexcept {
  constexpr int kSharedBytes = sizeof(SharedStorage<T>);
  const auto kernel = mma_forward_kernel<Direction, T, Crew>;
  static std::atomic<std::uint64_t> prepared{
      0};  // one bit per device; beyond 63 every launch sets the attributes again
  const std::uint64_t bit = args.device >= 0 && args.device < 64 ? std::uint64_t{1} << args.device : 0;
  if ((prepared.load(std::memory_order_relaxed) & bit) == 0) {
    cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
    if (error == cudaSuccess) {
      error = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                   cudaSharedmemCarveoutMaxShared);
    }
    if (error != cudaSuccess) {
      cudaGetLastError();  // clear it for the next caller
      return error;
    }
    prepared.fetch_or(bit, std::memory_order_relaxed);
  }
  params.block_rows_in_turn = static_cast<unsigned>(schedule.tiles_in_turn);
  params.segments = static_cast<unsigned>(schedule.cluster);
  cudaLaunchConfig_t config{};
  // The grid is below 2^31 for every output that fits on a device: a thread block writes 512 elements or
  // more, and teams only run small calls.
  config.gridDim =
      static_cast<unsigned>(ceil_div(params.m, T::kTokens) *
                            ceil_div(params.block_rows, params.block_rows_in_turn) * schedule.cluster);
  config.blockDim = T::kThreads;
  config.dynamicSmemBytes = kSharedBytes;
  config.stream = static_cast<cudaStream_t>(args.stream);
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {static_cast<unsigned>(schedule.cluster), 1, 1};
  config.attrs = &cluster;
  config.numAttrs = schedule.cluster > 1 ? 1 : 0;
  const cudaError_t error = cudaLaunchKernelEx(&config, kernel, static_cast<const Params&>(params));
  if (error != cudaSuccess) cudaGetLastError();  // clear it for the next caller
  return error;
}

/// Finds the tile of the schedule among kTiles, from kIndex on. If that tile is missing, or not compiled for
/// the schedule's division of block rows, the schedule names no instance.
template <class Direction, class Element, int kIndex = 0>
int launch_named(const Params& params, const Schedule& schedule, const MatmulArgs& args) noexcept {
  if constexpr (kIndex == kTileCount) {
    return cudaErrorInvalidValue;
  } else {
    constexpr TileShape kTile = kTiles[kIndex];
    using T = TileAt<Element, kIndex>;
    static_assert(sizeof(SharedStorage<T>) == kTile.shared_bytes(), "schedule.cpp relies on shared_bytes()");
    if (schedule.tile_m != T::kTokens || schedule.tile_n != T::kBlockRow || schedule.tile_k != T::kChunk)
      return launch_named<Direction, Element, kIndex + 1>(params, schedule, args);
    if (schedule.cluster == 1)
      return schedule.tiles_in_turn < 1 ? cudaErrorInvalidValue
                                        : launch_tile<Direction, T, Alone>(params, schedule, args);
    if constexpr (has_teams(kTile)) {
      if ((schedule.cluster == 2 || schedule.cluster == kMostSegments) && schedule.tiles_in_turn == 1)
        return launch_tile<Direction, T, Team>(params, schedule, args);
    }
    return cudaErrorInvalidValue;
  }
}

template <class Direction, class Element>
int launch(const MatmulArgs& args, const Schedule& schedule) noexcept {
  constexpr int kBytes = sizeof(typename Element::Bits);
  constexpr bool dx = kIsDx<Direction>;
  const IndexView& index = args.index;
  Params params{};
  params.a = args.a;
  params.values = args.values;
  params.list_begin = dx ? args.transposed.ccol : index.crow;
  params.along = dx ? args.transposed.row : index.col;
  params.slot = dx ? args.transposed.slot : nullptr;
  params.bias = dx ? nullptr : args.bias;
  params.residual = args.residual;
  params.residual_stride = args.residual_stride;
  params.out = args.out;
  params.m = args.m;
  params.a_width = dx ? index.rows : index.cols;
  params.a_stride = args.a_stride;
  params.out_width = dx ? index.cols : index.rows;
  params.out_stride = args.out_stride;
  params.block_rows = static_cast<unsigned>(dx ? index.block_cols() : index.block_rows());
  const int side = dx ? index.block.rows : index.block.cols;
  params.side_log2 = std::countr_zero(static_cast<unsigned>(side));
  params.activation = dx ? Activation::none : args.activation;
  params.copy_a = aligned(args.a, args.a_stride * kBytes, 16);
  params.copy_b = aligned(args.values, 0, 16);
  params.whole_width = params.a_width % side == 0;
  params.store_vectors = aligned(args.out, args.out_stride * kBytes, 4 * kBytes);
  if (params.m == 0 || params.block_rows == 0) return cudaSuccess;
  // The kernel would read blocks of another side wrongly.
  if (schedule.tile_n != (dx ? index.block.cols : index.block.rows)) return cudaErrorInvalidValue;
  return launch_named<Direction, Element>(params, schedule, args);
}

}  // namespace sparseloom::kernels::cuda::mma::forward
