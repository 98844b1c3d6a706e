// The reduction of dw_small over a cluster, whose thread blocks each have the sums of some of the tokens:
// every warp writes its own to shared memory, and then adds up some of them from all thread blocks, in the
// order of their ranks, so that every run gives the same bits.
#pragma once

#include <cuda_runtime.h>

#include "kernels/bsr_linear/sm80/dw_small/cell.cuh"
#include "kernels/bsr_linear/sm80/dw_small/entry.h"
#include "kernels/shared/ptx/cluster.cuh"

namespace sparseloom::kernels::cuda::dw_small {

/// The sums of a cell's rows in one MMA, as a cell of its own.
template <class C>
using Strip = Config<typename C::Type, C::kRows == 8 ? 8 : 16, kCellSide / C::kBlocks>;

__device__ __forceinline__ float4 operator+(float4 a, float4 b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

/// `memory` holds [warps][kVectors][32 lanes]. Warps w, w + cells, .. have partial sums of cell w.
template <class Config>
struct ClusterSums {
  static constexpr int kVectors = Config::kHeights * Config::kTiles;  // vectors per lane

  float4* memory;
  int cells, thread_blocks;

  __device__ __forceinline__ void put(const Sums<Config>& sums, int warp, int lane) const {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const float(&four)[4] = sums[i / Config::kTiles][i % Config::kTiles];
      memory[(warp * kVectors + i) * 32 + lane] = make_float4(four[0], four[1], four[2], four[3]);
    }
  }

  /// Adds the partial sums of this thread block. A barrier must follow before the sums are read.
  __device__ __forceinline__ void add_warps() const {
    if (cells == kWarps) return;
    __syncthreads();
    const int all = cells * kVectors * 32;
    for (int i = static_cast<int>(threadIdx.x); i < all; i += 32 * kWarps) {
      float4 sum = memory[i];
      for (int more = i + all; more < kWarps * kVectors * 32; more += all) sum = sum + memory[more];
      memory[i] = sum;
    }
  }

  /// Adds the sums of all thread blocks. Reads of two of them are in flight at once.
  __device__ __forceinline__ void get(Sums<Strip<Config>>& sum, int cell, int height, int lane) const {
    const float4* from = memory + (cell * kVectors + height * Config::kTiles) * 32 + lane;
    float4 total[Config::kTiles] = {};
#pragma unroll 1
    for (int rank = 0; rank < thread_blocks; rank += 2) {
      float4 one[Config::kTiles], other[Config::kTiles];
#pragma unroll
      for (int t = 0; t < Config::kTiles; ++t) {
        one[t] = ptx::ld_shared_cluster(from + 32 * t, rank);
        other[t] = ptx::ld_shared_cluster(from + 32 * t, rank + 1);
      }
#pragma unroll
      for (int t = 0; t < Config::kTiles; ++t) total[t] = total[t] + one[t] + other[t];
    }
#pragma unroll
    for (int t = 0; t < Config::kTiles; ++t)
      sum[0][t][0] = total[t].x, sum[0][t][1] = total[t].y, sum[0][t][2] = total[t].z,
      sum[0][t][3] = total[t].w;
  }
};

}  // namespace sparseloom::kernels::cuda::dw_small
