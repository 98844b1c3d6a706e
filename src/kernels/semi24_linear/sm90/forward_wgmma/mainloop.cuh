// Both sides of the rings: the producers' copies, and the consumers' products of a tile.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/semi24_linear/sm90/forward_wgmma/tile.cuh"
#include "kernels/shared/pipeline/pipeline.cuh"
#include "kernels/shared/ptx/sm90/bulk.cuh"
#include "kernels/shared/ptx/sm90/tma.cuh"
#include "kernels/shared/ptx/sm90/wgmma_rs.cuh"

namespace sparseloom::kernels::cuda::semi24 {

/// The rings as a thread sees them. `turn` counts K tiles from the kernel's start; a K tile is one stage of
/// weights, and two of x.
template <class T>
class Stages {
 public:
  using Weights = StageOf<T::kStages>;
  using X = StageOf<T::kXStages>;

  __device__ __forceinline__ Stages(const Rings<T>& rings, const Barriers<T>& barriers)
      : weights(barriers.full, barriers.empty),
        x(barriers.x_full, barriers.x_empty),
        weights_at_(ptx::shared_address(&rings.weights)),
        x_at_(ptx::shared_address(&rings.x)) {}

  /// One thread calls it.
  static __device__ __forceinline__ void init(Barriers<T>& barriers) {
    Pipeline::init(barriers.full, barriers.empty, 1, T::kConsumers * 4);
    Pipeline::init(barriers.x_full, barriers.x_empty, 1, T::kConsumers * 4);
    ptx::fence_mbarrier_init();
    ptx::fence_proxy_async();
  }

  __device__ __forceinline__ std::uint32_t at(Weights stage) const {
    return weights_at_ + stage.index * T::kStageBytes;
  }
  __device__ __forceinline__ std::uint32_t at(X stage) const { return x_at_ + stage.index * T::kXStageBytes; }

  const Pipeline weights, x;

 private:
  const std::uint32_t weights_at_, x_at_;
};

/// Copies weights and metadata of K tile k_tile; one lane of the first producer warp calls it.
template <class T>
__device__ __forceinline__ void copy_weights(const Params& params, const Stages<T>& stages, unsigned turn,
                                             std::int32_t row, std::int32_t k_tile) {
  const typename Stages<T>::Weights stage(turn);
  const std::uint32_t to = stages.at(stage), full = stages.weights.full(stage.index);
  stages.weights.acquire(stage.index, stage.parity ^ 1);
  Pipeline::expect(full, T::kStageBytes);
  ptx::tma_load_2d(to, &params.values, k_tile * (T::kCols / 2), row, full);
#pragma unroll
  for (int i = 0; i < T::kMetadataTiles; ++i) {
    // Beyond the last row W is zero, whatever the metadata says, as long as it is valid.
    const std::int32_t tile = min(row / static_cast<int>(kMetadataRows) + i, params.metadata_rows - 1);
    ptx::bulk_load(to + T::kMetadataAt + i * static_cast<int>(kMetadataTileBytes),
                   params.metadata + (std::int64_t{tile} * params.k_tiles + k_tile) * kMetadataTileBytes,
                   static_cast<std::uint32_t>(kMetadataTileBytes), full);
  }
}

/// Copies x of K tile k_tile; one lane of the second producer warp calls it.
template <class T>
__device__ __forceinline__ void copy_x(const Params& params, const Stages<T>& stages, unsigned turn,
                                       std::int32_t token, std::int32_t k_tile) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const typename Stages<T>::X stage(turn * 2 + half);
    const std::uint32_t full = stages.x.full(stage.index);
    stages.x.acquire(stage.index, stage.parity ^ 1);
    Pipeline::expect(full, T::kXStageBytes);
    ptx::tma_load_2d(stages.at(stage), &params.x, k_tile * T::kCols + half * (T::kCols / 2), token, full);
  }
}

/// A thread's metadata of half a K tile: a word for each block of rows.
template <class T>
using Metadata = std::uint32_t[T::kBlocks];

/// Multiplies half kHalf of the K tile after `turn` others, and then waits for the half before: its registers
/// of metadata and its stages are free, and the stages are given back unless it is the `first` one.
template <class T, int kHalf>
__device__ __forceinline__ void multiply_half(Sums<T>& sums, Metadata<T>& metadata, const Metadata<T>& before,
                                              const Stages<T>& stages, int warpgroup, unsigned turn,
                                              bool first) {
  const typename Stages<T>::Weights stage(turn);
  const typename Stages<T>::X x_stage(turn * 2 + kHalf);
  if constexpr (kHalf == 0) stages.weights.wait(stage.index, stage.parity);
  const std::uint32_t at = stages.at(stage);
  const std::uint32_t words = at + T::kMetadataAt +
                              warpgroup * T::kBlocks * static_cast<int>(kMetadataTileBytes) +
                              threadIdx.x % 128 * 8 + kHalf * 4;
#pragma unroll
  for (int block = 0; block < T::kBlocks; ++block)
    metadata[block] = ptx::ld_shared_b32(words + block * static_cast<int>(kMetadataTileBytes));
  stages.x.wait(x_stage.index, x_stage.parity);
  const std::uint32_t weights =
                          ptx::wgmma_address(at + warpgroup * (T::kBlocks * 64 * 128)) + kHalf * (64 / 16),
                      x = ptx::wgmma_address(stages.at(x_stage));
  ptx::wgmma_fence();
  const auto step = [&]<int kStep>() {
    const std::uint64_t b = T::kDescriptor | (x + kStep * (64 / 16));
#pragma unroll
    for (int block = 0; block < T::kBlocks; ++block) {
      const std::uint64_t a = T::kDescriptor | (weights + block * (64 * 128 / 16) + kStep * (32 / 16));
      T::Element::template mma<kStep>(sums[block], a, b, metadata[block], kHalf > 0 || kStep > 0 || !first);
    }
  };
  step.template operator()<0>();
  step.template operator()<1>();
  ptx::wgmma_commit();
  ptx::wgmma_wait<1>();
  ptx::keep(before);
  if constexpr (kHalf == 0) __syncwarp();  // all lanes have read the metadata of the K tile before
  if ((kHalf > 0 || !first) && threadIdx.x % 32 == 0) {
    stages.x.release(typename Stages<T>::X(turn * 2 + kHalf - 1).index);
    if constexpr (kHalf == 0) stages.weights.release(typename Stages<T>::Weights(turn - 1).index);
  }
}

/// sums = W x^T over k_tiles K tiles, from the one after `turn` others on.
template <class T>
__device__ __forceinline__ void multiply_tile(Sums<T>& sums, const Stages<T>& stages, int warpgroup,
                                              unsigned turn, std::int32_t k_tiles) {
  Metadata<T> even, odd = {};  // apart, because products that are under way still read theirs
#pragma unroll 1
  for (std::int32_t k = 0; k < k_tiles; ++k) {
    multiply_half<T, 0>(sums, even, odd, stages, warpgroup, turn + k, k == 0);
    multiply_half<T, 1>(sums, odd, even, stages, warpgroup, turn + k, k == 0);
  }
  ptx::wgmma_wait<0>();
  ptx::keep(odd);
  __syncwarp();
  if (threadIdx.x % 32 == 0) {
    stages.x.release(typename Stages<T>::X(turn * 2 + k_tiles * 2 - 1).index);
    stages.weights.release(typename Stages<T>::Weights(turn + k_tiles - 1).index);
  }
#pragma unroll
  for (int block = 0; block < T::kBlocks; ++block) ptx::pin(sums[block]);
}

}  // namespace sparseloom::kernels::cuda::semi24
