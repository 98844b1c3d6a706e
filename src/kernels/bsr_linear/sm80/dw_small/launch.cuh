// Host side of dw_small/kernel.cuh: fills the parameters, picks the instance for the tile and launches.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/args.h"
#include "kernels/bsr_linear/sm80/dw_small/entry.h"
#include "kernels/bsr_linear/sm80/dw_small/kernel.cuh"
#include "kernels/shared/early_launch.cuh"
#include "kernels/shared/vector.cuh"
#include "runtime/cuda.h"

namespace sparseloom::kernels::cuda::dw_small {

// Thread blocks per multiprocessor that begin at about the same time, and so may prefetch the operands before
// they wait.
constexpr unsigned kPrefetching = 2;

inline int log2_of(int power) { return std::countr_zero(static_cast<unsigned>(power)); }

inline Params params_of(const MatmulArgs& args, const Tile& tile, int cluster) {
  const IndexView& index = args.index;
  Params params;
  params.dy = args.a, params.x = args.b;
  params.dy_stride = args.a_stride, params.x_stride = args.b_stride;
  params.m = static_cast<int>(args.m), params.slice = slice_of(args.m, cluster);
  params.rows = index.rows, params.cols = index.cols;
  params.crow = index.crow, params.col = index.col;
  params.block_rows = index.block_rows(), params.blocks = index.blocks;
  params.rows_per_block = static_cast<float>(params.block_rows) / static_cast<float>(index.blocks);
  params.log2_bm = log2_of(index.block.rows), params.log2_bn = log2_of(index.block.cols);
  params.log2_tile_rows = log2_of(tile.rows), params.log2_tile_columns = log2_of(tile.columns);
  params.log2_row_tiles = params.log2_bm - params.log2_tile_rows;
  params.log2_block_tiles = log2_of(parts_of(tile, index.block));
  params.tile_blocks = blocks_of(tile, index.block);
  params.log2_cluster = log2_of(cluster);
  params.out = args.out;
  params.dy_chunks = vector_aligned(args.a, args.a_stride * 2);
  params.x_chunks = vector_aligned(args.b, args.b_stride * 2);
  params.out_chunks = reinterpret_cast<std::uintptr_t>(args.out) % (args.accumulate ? 8 : 16) == 0;
  params.accumulate = args.accumulate;
  params.ragged = index.rows % index.block.rows != 0 || index.cols % index.block.cols != 0;
  params.prefetch = false;
  return params;
}

template <class Config, bool kCluster>
int launch_config(Params params, const MatmulArgs& args, unsigned grid, int shared_bytes) {
  constexpr auto kKernel = &dw_small_kernel<Config, kCluster>;
  const runtime::CudaDevice& device = runtime::cuda_device(args.device);
  const cudaError_t status =
      allow_shared_memory<kKernel>(kSharedBytes, args.device, cudaSharedmemCarveoutMaxShared);
  if (status != cudaSuccess) return status;
  const bool early = waits_for_earlier<kKernel>(args.device);
  params.prefetch = early && grid <= kPrefetching * static_cast<unsigned>(device.multiprocessors);
  LaunchShape shape;
  shape.grid = dim3(grid), shape.block = dim3(kThreads);
  shape.shared_bytes = static_cast<std::size_t>(shared_bytes);
  shape.stream = static_cast<cudaStream_t>(args.stream);
  shape.early = early;
  shape.cluster = 1 << params.log2_cluster;
  return launch_kernel(shape, kKernel, params);
}

template <class Config>
int launch_config(const Params& params, const MatmulArgs& args, unsigned grid, int shared_bytes) {
  return params.log2_cluster == 0 ? launch_config<Config, false>(params, args, grid, shared_bytes)
                                  : launch_config<Config, true>(params, args, grid, shared_bytes);
}

template <class Type, int kRows>
int launch_rows(const Params& params, const MatmulArgs& args, unsigned grid, int shared_bytes) {
  switch (args.index.block.cols) {
    case 8: return launch_config<Config<Type, kRows, 8>>(params, args, grid, shared_bytes);
    case 16: return launch_config<Config<Type, kRows, 16>>(params, args, grid, shared_bytes);
    default: return launch_config<Config<Type, kRows, 32>>(params, args, grid, shared_bytes);
  }
}

template <class Type>
int launch(const MatmulArgs& args, const Schedule& schedule) {
  const Tile tile{schedule.tile_m, schedule.tile_n};
  const BlockShape block = args.index.block;
  const Params params = params_of(args, tile, schedule.cluster);
  const auto grid = static_cast<unsigned>(thread_blocks(tile, block, args.index.blocks) * schedule.cluster);
  const int bytes = shared_bytes(tile, block, args.m, schedule.cluster);
  switch (tile.rows) {
    case 8: return launch_rows<Type, 8>(params, args, grid, bytes);
    case 16: return launch_rows<Type, 16>(params, args, grid, bytes);
    default: return launch_rows<Type, 32>(params, args, grid, bytes);
  }
}

}  // namespace sparseloom::kernels::cuda::dw_small
