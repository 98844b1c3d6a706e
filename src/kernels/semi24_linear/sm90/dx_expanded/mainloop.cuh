// Both sides of the ring: the producers' copies, and the consumers' products.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/semi24_linear/sm90/dx_expanded/expand.cuh"
#include "kernels/shared/pipeline/pipeline.cuh"
#include "kernels/shared/ptx/cp_async.cuh"
#include "kernels/shared/ptx/sm90/tma.cuh"
#include "kernels/shared/ptx/sm90/wgmma_rs.cuh"

namespace sparseloom::kernels::cuda::semi24_dx {

/// A thread's sums: member 2 i + register / 2 % 2 of its group is in sums[i], for tokens 8 j + 2 q + r.
template <class T>
using Sums = float[2][T::kTokens / 2];

/// Copies values and dY of all K tiles of this thread block; one lane of the first producer warp calls it.
template <class T>
__device__ __forceinline__ void copy_tiles(const Params& params, const Shared<T>& shared, std::int32_t input,
                                           std::int32_t token, std::int32_t begin, std::int32_t count) {
  const Pipeline pipeline(shared.full, shared.empty);
  const std::uint32_t ring = ptx::shared_address(shared.ring);
#pragma unroll 1
  for (std::int32_t k = 0; k < count; ++k) {
    const StageOf<T::kStages> stage(static_cast<unsigned>(k));
    const std::uint32_t to = ring + stage.index * T::kStageBytes, full = pipeline.full(stage.index);
    const std::int32_t row = (begin + k) * kDepth;
    pipeline.acquire(stage.index, stage.parity ^ 1);
    Pipeline::expect(full, T::kBlocks * T::kValuesBytes + T::kTokens * 128);
#pragma unroll
    for (int block = 0; block < T::kBlocks; ++block)
      ptx::tma_load_2d(to + block * T::kValuesBytes, &params.values, input / 2 + block * 64, row, full);
    ptx::tma_load_2d(to + T::kXAt, &params.x, row, token, full);
  }
}

/// Copies the positions, in the order of tile.cuh; the second producer warp calls it. TMA would require rows
/// of positions at multiples of 16 bytes. Past W they are zero, and so are the values.
template <class T>
__device__ __forceinline__ void copy_positions(const Params& params, const Shared<T>& shared,
                                               std::int32_t input, std::int32_t begin, std::int32_t count) {
  const Pipeline pipeline(shared.full, shared.empty);
  const std::uint32_t ring = ptx::shared_address(shared.ring) + T::kPositionsAt;
  const std::int32_t lane = threadIdx.x % 32;
  // A lane has word `word` of eight rows of each block: rows `first`, `first` + 8, ..
  const std::int32_t word = lane % 4, first = lane / 4;
#pragma unroll 1
  for (std::int32_t k = 0; k < count; ++k) {
    const StageOf<T::kStages> stage(static_cast<unsigned>(k));
    pipeline.acquire(stage.index, stage.parity ^ 1);
    const std::int32_t top = (begin + k) * kDepth + first;
#pragma unroll
    for (int block = 0; block < T::kBlocks; ++block) {
      const std::int32_t byte = input / 8 + block * 16 + word * 4;
      const std::uint32_t to = ring + stage.index * T::kStageBytes + block * T::kPositionsBytes +
                               (word * 4 + first / 2) * 16 + first % 2 * 4;
      const std::uint8_t* const from = params.positions + std::int64_t{top} * params.position_bytes + byte;
#pragma unroll
      for (int i = 0; i < kDepth / 8; ++i) {
        const bool exists = top + i * 8 < params.rows && byte < params.position_bytes;
        ptx::cp_async_ca_b32(to + i / 2 * 256 + i % 2 * 8,
                             exists ? from + std::int64_t{i * 8} * params.position_bytes : params.positions,
                             exists ? 4u : 0u);
      }
    }
    ptx::mbarrier_arrive_behind_copies(pipeline.full(stage.index));
  }
}

template <class Element, int kSums>
__device__ __forceinline__ void multiply(float (&sums)[kSums], const std::uint32_t (&a)[4], std::uint64_t b) {
  if constexpr (Element::kDtype == DType::bf16)
    ptx::wgmma_rs_bf16<false>(sums, a, b);
  else
    ptx::wgmma_rs_f16<false>(sums, a, b);
}

/// sums = W^T dY^T over the warpgroup's steps of `count` K tiles. While the products of a step are in flight,
/// the next one is expanded into the other registers.
template <class T>
__device__ __forceinline__ void multiply_tiles(Sums<T>& sums, const Shared<T>& shared, int warpgroup,
                                               std::int32_t count) {
  const Pipeline pipeline(shared.full, shared.empty);
  const std::uint32_t ring = ptx::shared_address(shared.ring);
  const Reader<T> reader(shared, warpgroup);
  const std::uint32_t own_x = T::kXAt + (T::kDivides ? warpgroup * T::kSteps * 32 : 0);
#pragma unroll
  for (int i = 0; i < 2; ++i)
#pragma unroll
    for (int j = 0; j < T::kTokens / 2; ++j) sums[i][j] = 0.0f;
  std::uint32_t even[2][4], odd[2][4] = {};  // two sets, because products in flight still read theirs
#pragma unroll 1
  for (std::int32_t k = 0; k < count; ++k) {
    const StageOf<T::kStages> stage(static_cast<unsigned>(k));
    pipeline.wait(stage.index, stage.parity);
    const std::uint32_t at = ring + stage.index * T::kStageBytes;
    const std::uint64_t x = T::kDescriptor | ptx::wgmma_address(at + own_x);
    const auto step = [&]<int kStep>(std::uint32_t(&a)[2][4], const std::uint32_t(&before)[2][4]) {
      reader.template expand<kStep>(a, at);
      ptx::wgmma_fence();
      multiply<typename T::Element>(sums[0], a[0], x + kStep * 2);
      multiply<typename T::Element>(sums[1], a[1], x + kStep * 2);
      ptx::wgmma_commit();
      ptx::wgmma_wait<1>();
      ptx::keep(before);
      // All threads release a stage, since each has read values there.
      if (kStep == 0 && k > 0) pipeline.release(StageOf<T::kStages>(static_cast<unsigned>(k - 1)).index);
    };
    step.template operator()<0>(even, odd);
    step.template operator()<1>(odd, even);
    if constexpr (T::kSteps == 4) {
      step.template operator()<2>(even, odd);
      step.template operator()<3>(odd, even);
    }
  }
  ptx::wgmma_wait<0>();
  ptx::keep(even);
  ptx::keep(odd);
#pragma unroll
  for (int i = 0; i < 2; ++i) ptx::pin(sums[i]);
}

}  // namespace sparseloom::kernels::cuda::semi24_dx
