// Both sides of the rings: the producers' copies, and the consumers' products of a tile.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/semi24_linear/sm90/forward_wgmma/element.cuh"
#include "kernels/semi24_linear/sm90/forward_wgmma/tile.cuh"
#include "kernels/shared/pipeline/pipeline.cuh"
#include "kernels/shared/ptx/ld.cuh"
#include "kernels/shared/ptx/sm90/bulk.cuh"
#include "kernels/shared/ptx/sm90/tma.cuh"
#include "kernels/shared/ptx/sm90/wgmma_rs.cuh"

namespace sparseloom::kernels::cuda::semi24 {

/// A thread's view of the rings. `turn` counts K tiles from the kernel's start; a K tile is one stage of
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

  /// One thread calls it. Every consumer thread releases a stage of weights, since each has read metadata
  /// there; only wgmma reads x, and one lane per warp releases its stages. Rejected: a __syncwarp() and one
  /// lane for the weights too, where racecheck does not see that the other lanes' reads have ended.
  static __device__ __forceinline__ void init(Barriers<T>& barriers) {
    Pipeline::init(barriers.full, barriers.empty, 1, T::kConsumers * 128);
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
    // Past the last row W is zero, whatever the metadata says, as long as it is valid.
    const std::int32_t tile = min(row / static_cast<int>(kMetadataRows) + i, params.metadata_rows - 1);
    ptx::bulk_load(to + T::kMetadataAt + i * T::kMetadataBytes,
                   params.metadata + (std::int64_t{tile} * params.k_tiles + k_tile) * T::kMetadataBytes,
                   static_cast<std::uint32_t>(T::kMetadataBytes), full);
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

/// A thread's metadata of half a K tile: per block of rows one word that serves both steps of 16-bit
/// operands, or one word per step.
template <class T>
using Metadata = std::uint32_t[T::kBlocks][2 / T::Element::kBytes];

/// Half kHalf of the K tile after `turn` others, once it has landed: its metadata and the descriptor
/// addresses of its weights and x.
template <class T, int kHalf>
struct Half {
  typename Stages<T>::Weights stage;
  typename Stages<T>::X x_stage;
  std::uint32_t weights, x;

  __device__ __forceinline__ Half(Metadata<T>& metadata, const Stages<T>& stages, int warpgroup,
                                  unsigned turn)
      : stage(turn), x_stage(turn * 2 + kHalf) {
    if constexpr (kHalf == 0) stages.weights.wait(stage.index, stage.parity);
    const std::uint32_t at = stages.at(stage);
    constexpr int kLaneBytes = T::kMetadataBytes / 128;
    const std::uint32_t words = at + T::kMetadataAt + warpgroup * T::kBlocks * T::kMetadataBytes +
                                threadIdx.x % 128 * kLaneBytes + kHalf * (kLaneBytes / 2);
#pragma unroll
    for (int block = 0; block < T::kBlocks; ++block)
      ptx::ld_shared(metadata[block], words + block * T::kMetadataBytes);
    stages.x.wait(x_stage.index, x_stage.parity);
    weights = ptx::wgmma_address(at + warpgroup * (T::kBlocks * 64 * 128)) + kHalf * (64 / 16);
    x = ptx::wgmma_address(stages.at(x_stage));
  }

  /// sums of a block (+)= the products of step kStep, of two.
  template <int kStep, int kSums>
  __device__ __forceinline__ void multiply(typename T::Element::Sum (&sums)[kSums],
                                           const Metadata<T>& metadata, int block, bool add) const {
    const std::uint64_t a = T::kDescriptor | (weights + block * (64 * 128 / 16) + kStep * (32 / 16));
    const std::uint64_t b = T::kDescriptor | (x + kStep * (64 / 16));
    constexpr int kWord = kStep % (2 / T::Element::kBytes);
    T::Element::template mma<kStep>(sums, a, b, metadata[block][kWord], add);
  }
};

/// Multiplies half kHalf of the K tile after `turn` others, and then waits for the previous half: its
/// registers of metadata and its stages are free, and the stages are released unless it is the `first` one.
template <class T, int kHalf>
__device__ __forceinline__ void multiply_half(Sums<T>& sums, Metadata<T>& metadata, const Metadata<T>& before,
                                              const Stages<T>& stages, int warpgroup, unsigned turn,
                                              bool first) {
  const Half<T, kHalf> half(metadata, stages, warpgroup, turn);
  ptx::wgmma_fence();
  const auto step = [&]<int kStep>() {
#pragma unroll
    for (int block = 0; block < T::kBlocks; ++block)
      half.template multiply<kStep>(sums[block], metadata, block, kHalf > 0 || kStep > 0 || !first);
  };
  step.template operator()<0>();
  step.template operator()<1>();
  ptx::wgmma_commit();
  ptx::wgmma_wait<1>();
  ptx::keep(before);
  if (kHalf > 0 || !first) {
    if (threadIdx.x % 32 == 0) stages.x.release(typename Stages<T>::X(turn * 2 + kHalf - 1).index);
    if constexpr (kHalf == 0) stages.weights.release(typename Stages<T>::Weights(turn - 1).index);
  }
}

/// Multiplies with promoted sums: the products of each block are summed separately, and added to the others
/// when complete. The other warpgroup multiplies meanwhile.
template <class T, int kHalf>
__device__ __forceinline__ void multiply_half_promoted(Sums<T>& sums, const Stages<T>& stages, int warpgroup,
                                                       unsigned turn) {
  Metadata<T> metadata;
  const Half<T, kHalf> half(metadata, stages, warpgroup, turn);
#pragma unroll
  for (int block = 0; block < T::kBlocks; ++block) {
    float partial[T::kTokens / 2];
    ptx::wgmma_fence();
    half.template multiply<0>(partial, metadata, block, false);
    half.template multiply<1>(partial, metadata, block, true);
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::pin(partial);
    if (block == T::kBlocks - 1) {
      ptx::keep(metadata);
      if (threadIdx.x % 32 == 0) stages.x.release(half.x_stage.index);
      if constexpr (kHalf == 1) stages.weights.release(half.stage.index);
    }
#pragma unroll
    for (int i = 0; i < T::kTokens / 2; ++i) sums[block][i] += partial[i];
  }
}

/// sums = W x^T over k_tiles K tiles, from the one after `turn` others on.
template <class T>
__device__ __forceinline__ void multiply_tile(Sums<T>& sums, const Stages<T>& stages, int warpgroup,
                                              unsigned turn, std::int32_t k_tiles) {
  if constexpr (T::Element::kPromoted) {
#pragma unroll
    for (int block = 0; block < T::kBlocks; ++block)
#pragma unroll
      for (int i = 0; i < T::kTokens / 2; ++i) sums[block][i] = 0.0f;
#pragma unroll 1
    for (std::int32_t k = 0; k < k_tiles; ++k) {
      multiply_half_promoted<T, 0>(sums, stages, warpgroup, turn + k);
      multiply_half_promoted<T, 1>(sums, stages, warpgroup, turn + k);
    }
  } else {
    Metadata<T> even, odd = {};  // two sets, because products in flight still read theirs
#pragma unroll 1
    for (std::int32_t k = 0; k < k_tiles; ++k) {
      multiply_half<T, 0>(sums, even, odd, stages, warpgroup, turn + k, k == 0);
      multiply_half<T, 1>(sums, odd, even, stages, warpgroup, turn + k, k == 0);
    }
    ptx::wgmma_wait<0>();
    ptx::keep(odd);
    if (threadIdx.x % 32 == 0) stages.x.release(typename Stages<T>::X(turn * 2 + k_tiles * 2 - 1).index);
    stages.weights.release(typename Stages<T>::Weights(turn + k_tiles - 1).index);
#pragma unroll
    for (int block = 0; block < T::kBlocks; ++block) ptx::pin(sums[block]);
  }
}

}  // namespace sparseloom::kernels::cuda::semi24
