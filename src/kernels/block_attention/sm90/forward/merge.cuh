// Merges the parts of lists that were computed side by side, by their logarithms (FlashDecoding).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/block_attention/sm90/forward/params.cuh"

namespace sparseloom::kernels::cuda::attention {

inline constexpr int kMergeWarps = 4;

/// A warp for each query of a head. Parts are added in their order, so that every run has the same bits.
template <class T>
__global__ void __launch_bounds__(kMergeWarps * 32)
    merge_kernel(const __grid_constant__ ForwardParams params) {
  constexpr int kEach = T::kHeadDim / 32;  // numbers of a lane
  const std::int64_t row = std::int64_t{blockIdx.x} * kMergeWarps + threadIdx.x / 32;
  if (row >= params.parts.rows) return;
  const int lane = threadIdx.x % 32;
  const float *const lse = params.parts.lse + row, *const from =
                                                       params.parts.out + row * T::kHeadDim + lane * kEach;
  float top = -INFINITY, total = 0, sums[kEach] = {};
  for (int part = 0; part < params.splits; ++part) top = fmaxf(top, lse[part * params.parts.rows]);
  for (int part = 0; part < params.splits; ++part) {
    const float own = lse[part * params.parts.rows];
    if (own == -INFINITY) continue;  // its numbers were not written
    const float weight = expf(own - top);
    total += weight;
#pragma unroll
    for (int i = 0; i < kEach; ++i) sums[i] += weight * from[part * params.parts.rows * T::kHeadDim + i];
  }
  const float factor = total == 0 ? 0 : 1 / total;
  const std::int32_t q_tokens = params.common.q_tokens, heads = params.common.heads;
  auto* const out = static_cast<std::uint16_t*>(params.out) + row / q_tokens / heads * params.out_batch +
                    row / q_tokens % heads * params.out_head + row % q_tokens * params.out_token +
                    lane * kEach;
#pragma unroll
  for (int i = 0; i < kEach; i += 2)
    *reinterpret_cast<std::uint32_t*>(out + i) = T::Element::pair(sums[i] * factor, sums[i + 1] * factor);
  if (lane == 0) params.lse[row] = total == 0 ? -INFINITY : top + logf(total);
}

}  // namespace sparseloom::kernels::cuda::attention
