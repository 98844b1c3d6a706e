// dq from its sums, by a thread block for each unit of 64 queries of a head.
#pragma once

#include <cuda_runtime.h>

#include "kernels/block_attention/cuda/stats.cuh"
#include "kernels/block_attention/sm90/operands/registers.cuh"

namespace sparseloom::kernels::cuda::attention {

template <class Element, int kHeadDim>
__global__ void __launch_bounds__(128) write_dq_kernel(const __grid_constant__ AroundParams params) {
  __shared__ alignas(1024) std::byte staging[64 * kHeadDim * 2];
  const UnitPlace unit(params);
  if (unit.first >= unit.sequence.q_tokens) return;
  const float4* const from = reinterpret_cast<const float4*>(params.dq_sums + unit.place * 64 * kHeadDim);
  float sums[kHeadDim / 2];
#pragma unroll
  for (int j = 0; j < kHeadDim / 8; ++j) {
    const float4 four = from[j * 128 + threadIdx.x];
    sums[4 * j] = four.x, sums[4 * j + 1] = four.y, sums[4 * j + 2] = four.z, sums[4 * j + 3] = four.w;
  }
  const float scale = params.common.scale;
  store_tokens<Element, 64>(params.dq.row(unit.sequence, unit.head, unit.first), params.dq.strides[2],
                            unit.sequence.q_tokens - unit.first, staging, sums, {scale, scale}, 1);
}

}  // namespace sparseloom::kernels::cuda::attention
