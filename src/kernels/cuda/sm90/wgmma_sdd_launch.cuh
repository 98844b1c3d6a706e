// Host side of wgmma_sdd: tensor maps, which instance, and the launch.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>

#include "kernels/args.h"
#include "kernels/cuda/sm90/tensor_map.h"
#include "kernels/cuda/sm90/wgmma_sdd.cuh"
#include "kernels/cuda/sm90/wgmma_sdd.h"
#include "runtime/cuda.h"

namespace sparseloom::kernels::cuda::wgmma_sdd {

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// A grid of clusters; their attribute must outlive the configuration.
struct Grid {
  cudaLaunchAttribute cluster = {};
  cudaLaunchConfig_t config = {};

  template <class T>
  static Grid of(unsigned clusters, cudaStream_t stream) {
    Grid grid;
    grid.cluster.id = cudaLaunchAttributeClusterDimension;
    grid.cluster.val.clusterDim = {kCluster, 1, 1};
    grid.config.gridDim = dim3(clusters * kCluster);
    grid.config.blockDim = dim3(T::kThreads);
    grid.config.dynamicSmemBytes = sizeof(SharedStorage<T>);
    grid.config.stream = stream;
    grid.config.numAttrs = 1;
    return grid;
  }
};

/// Allows the shared memory and asks how many clusters run at once, which the sizes of the groups of multiprocessors decide: once
/// per device; 0 where none does. Beyond device 63 every launch asks anew.
template <class T>
cudaError_t find_clusters(int device, int& clusters) noexcept {
  constexpr int kSharedBytes = sizeof(SharedStorage<T>);
  static_assert(kSharedBytes <= 227 * 1024, "what sm_90 has");
  static std::atomic<int> known[64] = {};  // 1 + the number
  const bool kept = device >= 0 && device < 64;
  clusters = kept ? known[device].load(std::memory_order_relaxed) - 1 : -1;
  if (clusters >= 0) return cudaSuccess;
  cudaError_t status = cudaFuncSetAttribute(wgmma_sdd_kernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  if (status == cudaSuccess) {
    Grid grid = Grid::of<T>(1, nullptr);
    grid.config.attrs = &grid.cluster;
    status = cudaOccupancyMaxActiveClusters(&clusters, wgmma_sdd_kernel<T>, &grid.config);
  }
  if (status != cudaSuccess) {
    cudaGetLastError();  // not for the next caller
    return status;
  }
  clusters = std::max(clusters, 0);
  if (kept) known[device].store(clusters + 1, std::memory_order_relaxed);
  return cudaSuccess;
}

template <class T>
int launch_tile(Params& params, const MatmulArgs& args, const TensorMapMatrix& dy, const TensorMapMatrix& x) noexcept {
  int clusters = 0;
  if (const cudaError_t status = find_clusters<T>(args.device, clusters); status != cudaSuccess) return status;
  if (clusters == 0 || !encode_tensor_map(params.dy, dy, {kTokens, T::kDyBoxColumns, T::kDyBoxColumns * 2}) ||
      !encode_tensor_map(params.x, x, {kTokens, T::kBoxColumns, T::kBoxColumns * 2})) {
    return kCannotMap;
  }
  params.most_blocks = T::kStrips * kStripColumns >> params.bn_log2;
  // At most: every row's last item is short.
  const std::int64_t items = args.index.blocks / params.most_blocks + std::min<std::int64_t>(args.index.blocks, params.block_rows);
  Grid grid = Grid::of<T>(static_cast<unsigned>(std::min<std::int64_t>(clusters, items)), static_cast<cudaStream_t>(args.stream));
  grid.config.attrs = &grid.cluster;
  const cudaError_t status = cudaLaunchKernelEx(&grid.config, wgmma_sdd_kernel<T>, params);
  if (status != cudaSuccess) cudaGetLastError();  // not for the next caller
  return status;
}

template <class Element, int kRows>
int launch_rows(Params& params, const MatmulArgs& args, const TensorMapMatrix& dy, const TensorMapMatrix& x) noexcept {
  switch (args.index.block.cols) {
    case 32: return launch_tile<Tile<Element, kRows, 32>>(params, args, dy, x);
    case 64:
    case 128: return launch_tile<Tile<Element, kRows, 64>>(params, args, dy, x);
    default: return cudaErrorInvalidValue;
  }
}

template <class Element>
int launch(const MatmulArgs& args) noexcept {
  const IndexView& index = args.index;
  if (index.blocks == 0) return cudaSuccess;
  const TensorMapMatrix dy{args.a, args.dtype, args.m, index.rows, args.a_stride * 2};
  const TensorMapMatrix x{args.b, args.dtype, args.m, index.cols, args.b_stride * 2};
  if (!tensor_map_possible(dy) || !tensor_map_possible(x) || reinterpret_cast<std::uintptr_t>(args.out) % 16 != 0)
    return kCannotMap;
  Params params{};
  params.crow = index.crow;
  params.col = index.col;
  params.out = args.out;
  params.rows = static_cast<std::int32_t>(index.rows);
  params.cols = static_cast<std::int32_t>(index.cols);
  params.block_rows = static_cast<std::int32_t>(index.block_rows());
  params.steps = static_cast<std::int32_t>(ceil_div(args.m, kTokens));
  params.bn_log2 = std::countr_zero(static_cast<unsigned>(index.block.cols));
  params.ragged = index.rows % index.block.rows != 0 || index.cols % index.block.cols != 0;
  switch (index.block.rows) {
    case 32: return launch_rows<Element, 32>(params, args, dy, x);
    case 64: return launch_rows<Element, 64>(params, args, dy, x);
    case 128: return launch_rows<Element, 128>(params, args, dy, x);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace sparseloom::kernels::cuda::wgmma_sdd
