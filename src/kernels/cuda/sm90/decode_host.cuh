// Host side that the kernels of sm90_decode share: launches in clusters, how many of those run at once, parameters.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <limits>

#include "kernels/args.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/sm90/decode_config.cuh"
#include "runtime/cuda.h"

namespace sparseloom::kernels::cuda::decode90 {

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// A launch that begins while the one before it ends, in clusters; its attributes must outlive the configuration.
struct Launch {
  cudaLaunchAttribute attributes[2] = {};
  cudaLaunchConfig_t config = {};

  Launch(dim3 grid, int cluster, int threads, std::size_t bytes, cudaStream_t stream) {
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
    config.gridDim = grid;
    config.blockDim = dim3(static_cast<unsigned>(threads));
    config.dynamicSmemBytes = bytes;
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = cluster > 1 ? 2 : 1;
  }
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;
};

/// [i]: clusters of 2^i thread blocks that run at once; 0: none do.
using ClusterCounts = std::array<int, 4>;

/// Allows a kernel `most_bytes` of shared memory and counts clusters: groups of multiprocessors differ from chip to chip.
/// Once per device; beyond device 63 every launch does it anew.
template <auto kKernel>
cudaError_t prepare(int device, int multiprocessors, int threads, std::size_t most_bytes, ClusterCounts& counts) noexcept {
  static std::array<std::atomic<std::uint64_t>, 64> known{};  // 16 bits each
  const bool kept = device >= 0 && device < 64;
  std::uint64_t word = kept ? known[device].load(std::memory_order_acquire) : 0;
  if (word == 0) {
    const cudaError_t status =
        cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(most_bytes));
    if (status != cudaSuccess) {
      cudaGetLastError();  // not for the next caller
      return status;
    }
    word = static_cast<std::uint64_t>(std::clamp(multiprocessors, 1, 65535));
    for (unsigned i = 1; i < counts.size(); ++i) {
      const Launch launch(1u << i, 1 << i, threads, most_bytes, nullptr);
      int count = 0;
      if (cudaOccupancyMaxActiveClusters(&count, kKernel, &launch.config) != cudaSuccess) {
        cudaGetLastError();
        count = 0;
      }
      word |= static_cast<std::uint64_t>(std::clamp(count, 0, 65535)) << (16 * i);
    }
    if (kept) known[device].store(word, std::memory_order_release);
  }
  for (unsigned i = 0; i < counts.size(); ++i) counts[i] = static_cast<int>(word >> (16 * i) & 65535);
  return cudaSuccess;
}

inline bool multiple_of(const void* pointer, std::int64_t stride, int bytes) {
  return reinterpret_cast<std::uintptr_t>(pointer) % bytes == 0 && stride * 2 % bytes == 0;
}

/// What does not depend on the kernel. False where a count does not fit 32 bits or an operand is not aligned to 16 bytes.
inline bool fill(Params& params, const MatmulArgs& args) {
  const IndexView& index = args.index;
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max() / 2;
  const std::int64_t block_rows = index.block_rows(), strips = std::max(index.block.rows / kLine, 1);
  if (!multiple_of(args.a, args.a_stride, 16) || !multiple_of(args.values, 0, 16) || index.blocks == 0) return false;
  if (block_rows > kHopperDecodeRows || std::max(index.cols, index.rows) > kMost || (index.blocks + block_rows) * strips > kMost ||
      index.blocks * index.block.rows > kMost) {
    return false;
  }
  params.values = args.values;
  params.crow = index.crow;
  params.col = index.col;
  params.x = args.a;
  params.bias = args.bias;
  params.out = args.out;
  params.x_stride = args.a_stride;
  params.out_stride = args.out_stride;
  params.rows = static_cast<std::int32_t>(index.rows);
  params.cols = static_cast<std::int32_t>(index.cols);
  params.block_rows = static_cast<std::int32_t>(block_rows);
  params.strips_log2 = std::countr_zero(static_cast<unsigned>(strips));
  params.bn_log2 = std::countr_zero(static_cast<unsigned>(index.block.cols));
  params.m = static_cast<int>(args.m);
  params.fours_log2 = static_cast<int>(std::bit_width(static_cast<unsigned>((args.m + 3) / 4 - 1)));
  params.activation = args.activation;
  params.out_fours = multiple_of(args.out, args.out_stride, 8);
  return true;
}

/// How many clusters of 2^log2 thread blocks there will be, and what the kernels derive from that; `warps` in a thread block.
inline void set_clusters(Params& params, const MatmulArgs& args, unsigned clusters, unsigned log2, int warps) {
  const std::int64_t bytes = args.index.blocks * args.index.block_elements() * 2;
  params.cluster_log2 = static_cast<int>(log2);
  params.share_step = static_cast<unsigned>(((std::uint64_t{1} << 32) + clusters - 1) / clusters);  // of one cluster: not used
  params.warp_bytes = bytes / (std::int64_t{clusters} * warps << log2) / 16 * 16;
}

}  // namespace sparseloom::kernels::cuda::decode90
