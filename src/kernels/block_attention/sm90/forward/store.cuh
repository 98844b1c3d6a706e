// The end of a tile: out = sums / their total, in 16 bits, and the logarithm of the total.
#pragma once

#include "kernels/block_attention/cuda/softmax.cuh"
#include "kernels/block_attention/cuda/work.cuh"
#include "kernels/block_attention/sm90/forward/params.cuh"
#include "kernels/block_attention/sm90/operands/registers.cuh"

namespace sparseloom::kernels::cuda::attention {

/// Where the outputs of a warpgroup go.
struct Rows {
  std::uint16_t* out;  // of its first query
  std::int64_t stride;
  float* lse;
  std::int32_t count;  // queries from the first to the sequence's end; may be negative
};

__device__ __forceinline__ Rows rows_of(const ForwardParams& params, const Work& work, int group) {
  const auto& [sequence, entries, units, first_query, head, batch, part] = work;
  const Common& common = params.common;
  const int first = first_query + group * 64;
  Rows rows{static_cast<std::uint16_t*>(params.out), params.out_token, params.lse, sequence.q_tokens - first};
  rows.out += sequence.batch * params.out_batch + head * params.out_head +
              std::int64_t{sequence.q_first + first} * params.out_token;
  rows.lse += common.q_starts != nullptr ? std::int64_t{head} * common.all_q_tokens + sequence.q_first
                                         : (std::int64_t{batch} * common.heads + head) * common.q_tokens;
  rows.lse += first;
  return rows;
}

/// `staging`: the warpgroup's rows in the tile of queries, which it has read for the last time.
template <class T>
__device__ __forceinline__ void store(const Rows& rows, std::byte* staging, const float (&out)[T::kSumsO],
                                      Running& running, float scale) {
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16 + lane / 4;  // and 8 further
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float& sum = running.sum[i];
    sum += __shfl_xor_sync(0xffffffff, sum, 1);
    sum += __shfl_xor_sync(0xffffffff, sum, 2);
    if (lane % 4 == 0 && row + 8 * i < rows.count)
      rows.lse[row + 8 * i] = sum == 0 ? -INFINITY : running.top[i] * scale + logf(sum);
    sum = sum == 0 ? 0 : 1 / sum;
  }
  store_tokens<typename T::Element, T::kQueries>(rows.out, rows.stride, rows.count, staging, out, running.sum,
                                                 4 + static_cast<int>(threadIdx.x / 128));
}

/// The result of a part, for merge_kernel: out = sums / their total in fp32, and the logarithm of the total;
/// without a key the logarithm alone, -infinity.
template <class T>
__device__ __forceinline__ void store_part(const ForwardParams& params, const Work& work, int group,
                                           const float (&out)[T::kSumsO], Running& running) {
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16 + lane / 4;  // and 8 further
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float sum = running.sum[i];
    sum += __shfl_xor_sync(0xffffffff, sum, 1);
    sum += __shfl_xor_sync(0xffffffff, sum, 2);
    const int query = work.first_query + group * 64 + row + 8 * i;
    if (query >= params.common.q_tokens) continue;
    const std::int64_t at =
        work.part * params.parts.rows +
        (std::int64_t{work.batch} * params.common.heads + work.head) * params.common.q_tokens + query;
    if (lane % 4 == 0)
      params.parts.lse[at] = sum == 0 ? -INFINITY : running.top[i] * params.common.scale + logf(sum);
    if (sum == 0) continue;
    float* const to = params.parts.out + at * T::kHeadDim + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < T::kSumsO / 4; ++j)
      *reinterpret_cast<float2*>(to + 8 * j) =
          make_float2(out[4 * j + 2 * i] / sum, out[4 * j + 2 * i + 1] / sum);
  }
}

/// The outputs of queries that keep no key. Not through shared memory: the queries of the next tile may be on
/// their way there.
template <class T>
__device__ __forceinline__ void store_nothing(const Rows& rows) {
  store_zero_tokens<T::kHeadDim>(rows.out, rows.stride, rows.count);
  const int thread = threadIdx.x % 128;
  if (thread < min(rows.count, 64)) rows.lse[thread] = -INFINITY;
}

}  // namespace sparseloom::kernels::cuda::attention
