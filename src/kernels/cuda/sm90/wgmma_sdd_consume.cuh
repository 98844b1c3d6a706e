// The consumers: two warpgroups, each with every other strip of the item. What they multiply does not change from step to step.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/ptx/address.cuh"
#include "kernels/cuda/ptx/cluster.cuh"
#include "kernels/cuda/ptx/sm90/mbarrier.cuh"
#include "kernels/cuda/ptx/sm90/named_barrier.cuh"
#include "kernels/cuda/ptx/sm90/wgmma.cuh"
#include "kernels/cuda/sm90/wgmma_sdd_store.cuh"
#include "kernels/cuda/sm90/wgmma_sdd_tile.cuh"

namespace sparseloom::kernels::cuda::wgmma_sdd {

template <class T>
using Sums = float[T::kWarpgroupStrips][T::kRows / 2];

/// sums += x^T dy of one step; one group. x: this warpgroup's first strip; shared addresses / 16.
template <class T>
__device__ __forceinline__ void multiply_step(Sums<T>& sums, std::uint32_t x, std::uint32_t dy, int strips) {
  ptx::wgmma_fence();
#pragma unroll
  for (int strip = 0; strip < T::kWarpgroupStrips; ++strip) {
    if (strip >= strips) break;
#pragma unroll
    for (int k = 0; k < kTokens / 16; ++k) {
      T::Element::mma(sums[strip], T::kDescriptorX | (x + strip * (T::kConsumers * kStripBytes / 16) + k * (T::kXStepBytes / 16)),
                      T::kDescriptorDy | (dy + k * (T::kDyStepBytes / 16)));
    }
  }
  ptx::wgmma_commit();
}

/// 16 sums of a strip, those of 32 rows.
template <class T>
__device__ __forceinline__ void chunk_of(const Sums<T>& sums, int chunk, float (&to)[16]) {
#pragma unroll
  for (int i = 0; i < 16; ++i) to[i] = sums[chunk / T::kStripChunks][chunk % T::kStripChunks * 16 + i];
}

/// The cluster's part of an item whose tokens were cut: every thread block lays its sums into its ring and adds up those of all,
/// in the order of the tokens, for every pieces-th chunk.
template <class T>
__device__ __forceinline__ void add_pieces(const Params& params, const Record& record, SharedStorage<T>& shared,
                                           std::uint32_t staging, int warpgroup, int chunks, const Sums<T>& sums) {
  auto* const own = reinterpret_cast<float4*>(shared.ring) + warpgroup * (T::kChunks * 4 * 128) + threadIdx.x % 128;
  ptx::named_barrier_sync<1, T::kConsumers * 128>();  // both have done with what the ring held
#pragma unroll
  for (int chunk = 0; chunk < T::kChunks; ++chunk) {
    if (chunk >= chunks) break;
    float y[16];
    chunk_of<T>(sums, chunk, y);
#pragma unroll
    for (int i = 0; i < 4; ++i) own[(chunk * 4 + i) * 128] = make_float4(y[4 * i], y[4 * i + 1], y[4 * i + 2], y[4 * i + 3]);
  }
  ptx::cluster_sync();
  const int rank = static_cast<int>(blockIdx.x) % kCluster, piece = rank % record.pieces, first = rank - piece;
#pragma unroll 1
  for (int chunk = piece; chunk < chunks; chunk += record.pieces) {
    float y[16] = {};
#pragma unroll 1
    for (int other = first; other < first + record.pieces; ++other) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float4 part = ptx::ld_shared_cluster(own + (chunk * 4 + i) * 128, static_cast<unsigned>(other));
        y[4 * i] += part.x;
        y[4 * i + 1] += part.y;
        y[4 * i + 2] += part.z;
        y[4 * i + 3] += part.w;
      }
    }
    store_chunk<T>(params, record, staging, chunk / T::kStripChunks * T::kConsumers + warpgroup, chunk % T::kStripChunks, y);
  }
  ptx::cluster_sync();  // nobody leaves while another reads from it
}

/// The same in all lanes; said so that the branches on it are uniform.
__device__ __forceinline__ Record read_record(std::uint32_t record) {
  const auto word = [&](int i) {
    return static_cast<std::int32_t>(__shfl_sync(0xffffffff, ptx::ld_shared_b32(record + i * 4), 0));
  };
  return {word(0), word(1), word(2), word(3), word(4)};
}

/// One of the two warpgroups.
template <class T>
__device__ __forceinline__ void consume(const Params& params, SharedStorage<T>& shared, int warpgroup) {
  const int lane = threadIdx.x % 32;
  const std::uint32_t full = ptx::shared_address(shared.full), empty = ptx::shared_address(shared.empty);
  const std::uint32_t ring = ptx::wgmma_address(ptx::shared_address(shared.ring));
  const std::uint32_t staging = ptx::shared_address(shared.staging[threadIdx.x / 32]);
  unsigned parities = 0;  // of the full barriers; every end of a phase is awaited once

#pragma unroll 1
  while (true) {
    ptx::mbarrier_wait(full, parities & 1);
    parities ^= 1;
    const Record record = read_record(ptx::shared_address(&shared.record));
    if (record.blocks == 0) {
      if (record.pieces > 1) {  // others of the cluster have an item that is cut
        ptx::cluster_sync();
        ptx::cluster_sync();
      }
      return;
    }
    const int strips = ((record.blocks << params.bn_log2) + kStripColumns - 1) / kStripColumns;
    const int own_strips = (strips + 1 - warpgroup) / T::kConsumers;
    const int stage_bytes = T::stage_bytes(strips), stages = min(T::kMostStages, T::kRingBytes / stage_bytes);
    Sums<T> sums = {};
    int stage = 0;
#pragma unroll 1
    for (std::int32_t step = 0; step < record.steps; ++step) {
      const std::uint32_t dy = ring + stage * (stage_bytes / 16);
      multiply_step<T>(sums, dy + (T::kDyBytes + warpgroup * kStripBytes) / 16, dy, own_strips);
      // While the tensor cores work: is the next stage there? To wait for it now would keep this one from the producers.
      const std::uint32_t done = empty + stage * 8;
      const bool last = step + 1 == record.steps;
      stage = stage + 1 == stages ? 0 : stage + 1;
      const bool ready = last || __all_sync(0xffffffff, ptx::mbarrier_test_wait(full + stage * 8, parities >> stage & 1));
      ptx::wgmma_wait<0>();
      if (lane == 0) ptx::mbarrier_arrive(done);
      if (last) break;
      if (!ready) ptx::mbarrier_wait(full + stage * 8, parities >> stage & 1);
      parities ^= 1u << stage;
      __syncwarp();
    }
#pragma unroll
    for (auto& strip : sums) ptx::pin(strip);

    const int chunks = own_strips * T::kStripChunks;
    if (record.pieces > 1) {
      add_pieces<T>(params, record, shared, staging, warpgroup, chunks, sums);
      return;
    }
#pragma unroll
    for (int chunk = 0; chunk < T::kChunks; ++chunk) {
      if (chunk >= chunks) break;
      float y[16];
      chunk_of<T>(sums, chunk, y);
      store_chunk<T>(params, record, staging, chunk / T::kStripChunks * T::kConsumers + warpgroup, chunk % T::kStripChunks, y);
    }
  }
}

}  // namespace sparseloom::kernels::cuda::wgmma_sdd
