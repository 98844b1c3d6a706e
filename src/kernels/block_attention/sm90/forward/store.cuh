// The end of a tile: out = sums / their total, in 16 bits, and the logarithm of the total.
#pragma once

#include "kernels/block_attention/sm90/forward/params.cuh"
#include "kernels/block_attention/sm90/forward/softmax.cuh"
#include "kernels/block_attention/sm90/forward/work.cuh"
#include "kernels/shared/ptx/address.cuh"
#include "kernels/shared/ptx/sm90/named_barrier.cuh"

namespace sparseloom::kernels::cuda::attention {

/// Where the outputs of a warpgroup go.
struct Rows {
  std::int32_t first, end;  // its first query; the sequence's queries
  std::uint16_t* out;       // of query 0
  std::int64_t stride;
  float* lse;  // of query 0
};

__device__ __forceinline__ Rows rows_of(const ForwardParams& params, const Work& work, int group) {
  const auto& [sequence, entries, units, first_query, head, batch] = work;
  const Common& common = params.common;
  Rows rows{first_query + group * 64, sequence.q_tokens, static_cast<std::uint16_t*>(params.out), params.out_token, params.lse};
  rows.out += sequence.batch * params.out_batch + head * params.out_head + sequence.q_first * params.out_token;
  if (common.q_starts != nullptr)
    rows.lse += std::int64_t{head} * common.all_q_tokens + sequence.q_first;
  else
    rows.lse += (std::int64_t{batch} * common.heads + head) * common.q_tokens;
  return rows;
}

/// `staging`: the warpgroup's rows in the tile of queries, which it has read for the last time. They go
/// through shared memory so that rows leave in pieces of 16 bytes x 8 lanes: whole lines.
template <class T>
__device__ __forceinline__ void store(const Rows& rows, std::byte* staging, float (&out)[T::kSumsO],
                                      Running& running, float scale) {
  const int thread = threadIdx.x % 128, lane = threadIdx.x % 32;
  const int row = thread / 32 * 16 + lane / 4;  // and 8 further
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float& sum = running.sum[i];
    sum += __shfl_xor_sync(0xffffffff, sum, 1);
    sum += __shfl_xor_sync(0xffffffff, sum, 2);
    const int query = rows.first + row + 8 * i;
    if (lane % 4 == 0 && query < rows.end)
      rows.lse[query] = sum == 0 ? -INFINITY : running.top[i] * scale + logf(sum);
    sum = sum == 0 ? 0 : 1 / sum;
  }
  const std::uint32_t shared = ptx::shared_address(staging);
#pragma unroll
  for (int j = 0; j < T::kSumsO / 4; ++j)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int at = row + 8 * i;
      const std::uint32_t chunk = (j % 8) ^ (at % 8);
      ptx::st_shared_b32(shared + j / 8 * T::kQueries * 128 + at * 128 + chunk * 16 + lane % 4 * 4,
                         T::Element::pair(out[4 * j + 2 * i] * running.sum[i],
                                          out[4 * j + 2 * i + 1] * running.sum[i]));
    }
  ptx::named_barrier_sync<128>(4 + static_cast<int>(threadIdx.x / 128));
#pragma unroll
  for (int part = 0; part < T::kHeadDim / 64; ++part)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int at = i * 16 + thread / 8, chunk = thread % 8;
      if (rows.first + at >= rows.end) continue;
      const uint4 piece = *reinterpret_cast<const uint4*>(staging + part * T::kQueries * 128 + at * 128 +
                                                          (chunk ^ at % 8) * 16);
      *reinterpret_cast<uint4*>(rows.out + (rows.first + at) * rows.stride + part * 64 + chunk * 8) = piece;
    }
}

/// The outputs of queries that keep no key. Not through shared memory: the queries of the next tile may be on
/// their way there.
template <class T>
__device__ __forceinline__ void store_nothing(const Rows& rows) {
  const int thread = threadIdx.x % 128;
  constexpr int kPieces = T::kHeadDim / 8;
  for (int i = thread; i < 64 * kPieces; i += 128)
    if (const int query = rows.first + i / kPieces; query < rows.end)
      *reinterpret_cast<uint4*>(rows.out + query * rows.stride + i % kPieces * 8) = make_uint4(0, 0, 0, 0);
  if (thread < 64 && rows.first + thread < rows.end) rows.lse[rows.first + thread] = -INFINITY;
}

}  // namespace sparseloom::kernels::cuda::attention
