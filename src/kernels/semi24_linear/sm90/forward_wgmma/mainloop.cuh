// Both sides of the ring: the producer's copies of a stage, and the consumers' products of all stages of a
// tile.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/semi24_linear/sm90/forward_wgmma/tile.cuh"
#include "kernels/shared/pipeline/pipeline.cuh"
#include "kernels/shared/ptx/sm90/bulk.cuh"
#include "kernels/shared/ptx/sm90/multicast.cuh"
#include "kernels/shared/ptx/sm90/tma.cuh"
#include "kernels/shared/ptx/sm90/wgmma_rs.cuh"

namespace sparseloom::kernels::cuda::semi24 {

/// Fills the stage after `turn` others with K tile number k_tile. One elected lane of the producer calls it.
template <class T>
__device__ __forceinline__ void fill_stage(const Params& params, const Pipeline& pipeline, std::uint32_t ring,
                                           unsigned turn, std::int32_t row, std::int32_t token,
                                           std::int32_t k_tile, unsigned rank) {
  const StageOf<T::kStages> stage(turn);
  const std::uint32_t to = ring + stage.index * T::kStageBytes, full = pipeline.full(stage.index);
  pipeline.acquire(stage.index, stage.parity ^ 1);
  Pipeline::expect(full, T::kStageBytes);
  if constexpr (T::kPair) {
    // The other thread block copies the other half into this one.
    const std::int32_t half = static_cast<std::int32_t>(rank) * (T::kRows / 2);
    ptx::tma_load_2d_multicast(to + half * 128, &params.values, k_tile * (T::kCols / 2), row + half, full, 3);
  } else {
    ptx::tma_load_2d(to, &params.values, k_tile * (T::kCols / 2), row, full);
  }
#pragma unroll
  for (int box = 0; box < 2; ++box)
    ptx::tma_load_2d(to + T::kXAt + box * T::kBoxBytes, &params.x, k_tile * T::kCols + box * (T::kCols / 2),
                     token, full);
#pragma unroll
  for (int i = 0; i < T::kMetadataTiles; ++i) {
    // Beyond the last row W is zero, whatever the metadata says, as long as it is valid.
    const std::int32_t tile = min(row / static_cast<int>(kMetadataRows) + i, params.metadata_rows - 1);
    ptx::bulk_load(to + T::kMetadataAt + i * static_cast<int>(kMetadataTileBytes),
                   params.metadata + (std::int64_t{tile} * params.k_tiles + k_tile) * kMetadataTileBytes,
                   static_cast<std::uint32_t>(kMetadataTileBytes), full);
  }
}

/// Gives a stage back to the producers that fill it: with kPair the weights come from both thread blocks.
template <class T>
__device__ __forceinline__ void release_stage(const Pipeline& pipeline, Barriers<T>& barriers,
                                              std::uint32_t stage) {
  const unsigned lane = threadIdx.x % 32;
  if constexpr (T::kPair) {
    if (lane < 2) ptx::mbarrier_arrive_in_cluster(ptx::shared_address(&barriers.empty[stage]), lane);
  } else {
    if (lane == 0) pipeline.release(stage);
  }
}

/// The metadata of a stage: a thread's words of each block of rows.
template <class T>
using Metadata = std::uint32_t[T::kBlocks][2];

/// sums (+)= W x^T over a stage; `add` is false where the sums begin.
template <class T>
__device__ __forceinline__ void multiply_stage(Sums<T>& sums, const Metadata<T>& metadata,
                                               std::uint32_t weights, std::uint32_t x, bool add) {
  ptx::wgmma_fence();
  const auto step = [&]<int kStep>() {
    const std::uint64_t b =
        T::kDescriptor | (x + kStep / 2 * (T::kBoxBytes / 16) + kStep % 2 * (64 / 16));
#pragma unroll
    for (int block = 0; block < T::kBlocks; ++block) {
      const std::uint64_t a = T::kDescriptor | (weights + block * (64 * 128 / 16) + kStep * (32 / 16));
      T::Element::template mma<kStep % 2>(sums[block], a, b, metadata[block][kStep / 2], kStep > 0 || add);
    }
  };
  step.template operator()<0>();
  step.template operator()<1>();
  step.template operator()<2>();
  step.template operator()<3>();
  ptx::wgmma_commit();
}

/// Multiplies k_tiles stages, from the one after `turn` others on, and gives each back.
template <class T>
__device__ __forceinline__ void multiply_tile(Sums<T>& sums, const Pipeline& pipeline, Barriers<T>& barriers,
                                              std::uint32_t ring, int warpgroup, unsigned turn,
                                              std::int32_t k_tiles) {
  Metadata<T> even, odd;  // apart, because products that are under way still read theirs
  // Issues the products of stage k, and then waits for those of the stage before.
  const auto issue = [&](Metadata<T>& now, Metadata<T>& before, std::int32_t k) {
    const StageOf<T::kStages> stage(turn + k);
    pipeline.wait(stage.index, stage.parity);
    const std::uint32_t at = ring + stage.index * T::kStageBytes;
#pragma unroll
    for (int block = 0; block < T::kBlocks; ++block) {
      const std::uint32_t words = at + T::kMetadataAt +
                                  (warpgroup * T::kBlocks + block) * static_cast<int>(kMetadataTileBytes) +
                                  threadIdx.x % 128 * 8;
      asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];"
                   : "=r"(now[block][0]), "=r"(now[block][1])
                   : "r"(words)
                   : "memory");
    }
    const std::uint32_t weights = ptx::wgmma_address(at + warpgroup * (T::kBlocks * 64 * 128));
    multiply_stage<T>(sums, now, weights, ptx::wgmma_address(at + T::kXAt), k > 0);
    ptx::wgmma_wait<1>();
    ptx::keep(before);
    if (k > 0) release_stage<T>(pipeline, barriers, StageOf<T::kStages>(turn + k - 1).index);
  };
#pragma unroll
  for (int block = 0; block < T::kBlocks; ++block) odd[block][0] = odd[block][1] = 0;
  std::int32_t k = 0;
#pragma unroll 1
  for (; k + 1 < k_tiles; k += 2) {
    issue(even, odd, k);
    issue(odd, even, k + 1);
  }
  if (k < k_tiles) issue(even, odd, k);
  ptx::wgmma_wait<0>();
  ptx::keep(even);
  ptx::keep(odd);
  release_stage<T>(pipeline, barriers, StageOf<T::kStages>(turn + k_tiles - 1).index);
#pragma unroll
  for (int block = 0; block < T::kBlocks; ++block) ptx::pin(sums[block]);
}

}  // namespace sparseloom::kernels::cuda::semi24
