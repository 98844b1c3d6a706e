// Host side that all decode kernels share: parameters, and permission to use all shared memory.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdint>

#include "kernels/args.h"
#include "kernels/bsr_linear/sm80/decode/params.cuh"

namespace sparseloom::kernels::cuda::decode {

inline bool aligned(const void* pointer, std::int64_t stride_bytes, int to) {
  return reinterpret_cast<std::uintptr_t>(pointer) % to == 0 && stride_bytes % to == 0;
}

/// Sets all parameters but strips_shift and block_rows.
template <class Element>
Params<Element> params_of(const MatmulArgs& args) {
  const bool forward = args.direction == Direction::forward;
  const IndexView& index = args.index;
  Params<Element> params;
  params.first = forward ? index.crow : args.transposed.ccol;
  params.outer = forward ? index.col : args.transposed.row;
  params.slot = forward ? nullptr : args.transposed.slot;
  params.values = static_cast<const Element*>(args.values);
  params.a = static_cast<const Element*>(args.a);
  params.bias = static_cast<const Element*>(args.bias);
  params.residual = static_cast<const Element*>(args.residual);
  params.residual_stride = args.residual_stride;
  params.out = static_cast<Element*>(args.out);
  params.a_stride = args.a_stride;
  params.a_cols = forward ? index.cols : index.rows;
  params.out_stride = args.out_stride;
  params.out_cols = forward ? index.rows : index.cols;
  params.m = static_cast<int>(args.m);
  params.block_bytes = static_cast<unsigned>(index.block_elements() * sizeof(Element));
  params.row_bytes = static_cast<unsigned>(index.block.cols * sizeof(Element));
  params.k_shift = std::countr_zero(static_cast<unsigned>(forward ? index.block.cols : index.block.rows));
  params.whole_outer = static_cast<int>(params.a_cols >> params.k_shift);
  params.out_side = forward ? index.block.rows : index.block.cols;
  params.blocks = static_cast<std::int32_t>(index.blocks);
  params.activation = args.activation;
  params.values_aligned = aligned(args.values, 0, 16);
  params.a_aligned = aligned(args.a, args.a_stride * sizeof(Element), 16);
  params.out_pairs = aligned(args.out, args.out_stride * sizeof(Element), 2 * sizeof(Element));
  return params;
}

/// What a kernel's first use on a device requests and finds out.
struct Readiness {
  cudaError_t status = cudaSuccess;
  /// clusters[i]: number of clusters of 2^i thread blocks that the device runs at once; 0 if the device or
  /// the kernel's code does not support them.
  std::array<int, 4> clusters = {};
};

/// Asks the driver how many clusters fit: the groups of multiprocessors that can hold a cluster differ in
/// size from chip to chip.
template <auto kKernel>
std::array<int, 4> count_clusters(int threads, std::size_t shared_bytes) {
  std::array<int, 4> counts = {};
  for (unsigned i = 1; i < counts.size(); ++i) {
    cudaLaunchAttribute cluster = {};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {1u << i, 1, 1};
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(1u << i);
    config.blockDim = dim3(static_cast<unsigned>(threads));
    config.dynamicSmemBytes = shared_bytes;
    config.attrs = &cluster;
    config.numAttrs = 1;
    if (cudaOccupancyMaxActiveClusters(&counts[i], kKernel, &config) == cudaSuccess) continue;
    cudaGetLastError();  // a cluster that does not fit is not an error
    counts[i] = 0;
  }
  return counts;
}

/// Lets a kernel use all shared memory of a device; this happens once per device. `threads`: size of the
/// kernel's largest thread block, to count clusters; 0 if it uses none.
template <auto kKernel>
Readiness make_ready(int device, std::size_t shared_bytes, int threads) {
  constexpr int kDevices = 64;
  static std::array<std::atomic<std::uint32_t>, kDevices> known{};  // byte 0: known, byte i: clusters[i]
  Readiness ready;
  if (device < kDevices) {
    if (const std::uint32_t word = known[device].load(std::memory_order_acquire); word != 0) {
      for (int i = 1; i < 4; ++i) ready.clusters[i] = word >> (8 * i) & 255;
      return ready;
    }
  }
  cudaFuncAttributes attributes;
  ready.status = cudaFuncGetAttributes(&attributes, kKernel);
  if (ready.status == cudaSuccess)
    ready.status = cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                        static_cast<int>(shared_bytes));
  if (ready.status == cudaSuccess)
    ready.status = cudaFuncSetAttribute(kKernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                        cudaSharedmemCarveoutMaxShared);
  if (ready.status != cudaSuccess) {
    cudaGetLastError();  // clear it for the next caller
    return ready;
  }
  // Code compiled from the sm_80 PTX does not support clusters, whatever the device.
  if (threads > 0 && attributes.ptxVersion >= 90)
    ready.clusters = count_clusters<kKernel>(threads, shared_bytes);
  std::uint32_t word = 1;
  for (int i = 1; i < 4; ++i) {
    ready.clusters[i] = std::min(ready.clusters[i], 255);
    word |= static_cast<std::uint32_t>(ready.clusters[i]) << (8 * i);
  }
  if (device < kDevices) known[device].store(word, std::memory_order_release);
  return ready;
}

}  // namespace sparseloom::kernels::cuda::decode
