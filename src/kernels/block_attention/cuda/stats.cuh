// What runs before a backward kernel: stats of the queries, by a thread block for each unit of 64 queries of
// a head.
//
//   stats  of a unit: log2(e) lse of its queries, +infinity where a query keeps no key or does not exist, and
//          delta, the sum over head_dim of out dout, less the gradient of lse
#pragma once

#include <cuda_runtime.h>

#include "kernels/block_attention/cuda/call.h"
#include "kernels/block_attention/cuda/sequence.cuh"

namespace sparseloom::kernels::cuda::attention {

/// A tensor of queries, by strides in elements: batch, head, token.
struct QueryTensor {
  std::uint16_t* data;
  std::int64_t strides[3];
  __device__ __forceinline__ std::uint16_t* row(const Sequence& sequence, int head, int query) const {
    return data + sequence.batch * strides[0] + head * strides[1] +
           std::int64_t{sequence.q_first + query} * strides[2];
  }
};

struct AroundParams {
  Common common;
  std::int32_t units, places;  // of a sequence: the most; of a head
  QueryTensor out, dout;
  const float *lse, *dlse;  // dlse may be null
  float* stats;
};

inline AroundParams around_of(const block_attention::Problem& problem, const block_attention::Args& args,
                              const BackwardWorkspace& workspace, const Common& common, float* stats) {
  const auto tensor = [](const block_attention::Tensor& t) {
    return QueryTensor{static_cast<std::uint16_t*>(const_cast<void*>(t.data)), {t.batch, t.head, t.token}};
  };
  return {common,
          static_cast<std::int32_t>((problem.q_tokens + 63) / 64),
          static_cast<std::int32_t>(workspace.places),
          tensor(args.out),
          tensor(args.dout),
          args.lse,
          args.dlse,
          stats};
}

/// The place of the thread block's unit.
struct UnitPlace {
  Sequence sequence;
  int batch, head, first;
  std::int64_t place;
  __device__ __forceinline__ UnitPlace(const AroundParams& params)
      : sequence(params.common, blockIdx.z), batch(blockIdx.z), head(blockIdx.y), first(blockIdx.x * 64) {
    const bool ragged = params.common.q_starts != nullptr;
    place = (ragged ? std::int64_t{head} : std::int64_t{batch} * params.common.heads + head) * params.places +
            first_place(sequence, batch, ragged) + blockIdx.x;
  }
};

template <class Element, int kHeadDim>
__global__ void __launch_bounds__(256) stats_kernel(const __grid_constant__ AroundParams params) {
  const UnitPlace unit(params);
  if (unit.first >= unit.sequence.q_tokens) return;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float* const stats = params.stats + unit.place * 128;
  const Common& common = params.common;
  const std::int64_t of_head = common.q_starts != nullptr
                                   ? std::int64_t{unit.head} * common.all_q_tokens + unit.sequence.q_first
                                   : (std::int64_t{unit.batch} * common.heads + unit.head) * common.q_tokens;
  // 8 elements a lane; kHeadDim / 8 lanes a query.
  constexpr int kLanes = kHeadDim / 8, kRows = 32 / kLanes;
#pragma unroll
  for (int i = 0; i < 8 / kRows; ++i) {
    const int at = warp * 8 + i * kRows + lane / kLanes, query = unit.first + at;
    float sum = 0;
    if (query < unit.sequence.q_tokens) {
      const int column = lane % kLanes * 8;
      const uint4 a =
          *reinterpret_cast<const uint4*>(params.out.row(unit.sequence, unit.head, query) + column);
      const uint4 b =
          *reinterpret_cast<const uint4*>(params.dout.row(unit.sequence, unit.head, query) + column);
      const std::uint32_t x[4] = {a.x, a.y, a.z, a.w}, y[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
      for (int j = 0; j < 4; ++j)
        sum += Element::to_f32(static_cast<std::uint16_t>(x[j])) *
                   Element::to_f32(static_cast<std::uint16_t>(y[j])) +
               Element::to_f32(static_cast<std::uint16_t>(x[j] >> 16)) *
                   Element::to_f32(static_cast<std::uint16_t>(y[j] >> 16));
    }
#pragma unroll
    for (int other = kLanes / 2; other > 0; other /= 2) sum += __shfl_xor_sync(0xffffffff, sum, other);
    if (lane % kLanes == 0) {
      const bool exists = query < unit.sequence.q_tokens;
      const float value = exists ? params.lse[of_head + query] : -INFINITY;
      // d lse / d score is P, as d out / d score begins with P: its gradient counts against delta.
      if (exists && params.dlse != nullptr) sum -= params.dlse[of_head + query];
      stats[at] = value == -INFINITY ? INFINITY : value * 1.4426950408889634f;
      stats[64 + at] = sum;
    }
  }
}

}  // namespace sparseloom::kernels::cuda::attention
