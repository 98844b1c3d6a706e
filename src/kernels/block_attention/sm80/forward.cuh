// The forward kernel for GPUs from compute capability 8.0 on: a thread block for each block of queries, a
// warp for each 16 of them, which walk over 64 keys at a time (FlashAttention-2, Dao 2023). The keys and
// values of the next step are copied beside the products of this one.
#pragma once

#include "kernels/block_attention/cuda/softmax.cuh"
#include "kernels/block_attention/cuda/work.cuh"
#include "kernels/block_attention/sm80/params.cuh"
#include "kernels/shared/ptx/address.cuh"

namespace sparseloom::kernels::cuda::attention::sm80 {

template <class Element_, int kHeadDim_, int kQBlock_>
struct ForwardTile {
  using Element = Element_;
  static constexpr int kHeadDim = kHeadDim_, kQueries = kQBlock_, kThreads = 2 * kQueries;
  static constexpr int kRowBytes = kHeadDim * 2, kUnitBytes = 64 * kRowBytes;
  static constexpr int kSharedBytes = kQueries * kRowBytes + 4 * kUnitBytes;  // Q, and two stages of K and V
};

template <class T>
__global__ void __launch_bounds__(T::kThreads, 1) forward_kernel(const __grid_constant__ Params params) {
  extern __shared__ __align__(128) std::byte shared_bytes[];
  const Common& common = params.common;
  // The last blocks of queries first: causal ones have the longest lists.
  const int tile =
      static_cast<int>((blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + gridDim.x - 1 - blockIdx.x);
  const Work work(params, tile, T::kQueries);
  const Sequence& sequence = work.sequence;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int first = work.first_query + warp * 16, tokens = sequence.q_tokens - first;
  if (work.first_query >= sequence.q_tokens) return;
  const std::uint32_t q_tile = ptx::shared_address(shared_bytes), ring = q_tile + T::kQueries * T::kRowBytes;
  const int kv_head = work.head / common.heads_per_kv;
  const Rows k{params.k.rows(sequence.batch, kv_head, sequence.kv_first), params.k.token};
  const Rows v{params.v.rows(sequence.batch, kv_head, sequence.kv_first), params.v.token};
  const auto copy = [&](int unit) {
    if (unit < work.units) {
      const std::uint32_t stage = ring + unit % 2 * 2 * T::kUnitBytes;
      const int key = unit_token(work.entries, params.kv_block, unit) & ~Lists::kPartial;
      copy_rows<T::kHeadDim, 64, T::kThreads>(stage, k, key, sequence.kv_tokens);
      copy_rows<T::kHeadDim, 64, T::kThreads>(stage + T::kUnitBytes, v, key, sequence.kv_tokens);
    }
    ptx::cp_async_commit();
  };
  copy_rows<T::kHeadDim, T::kQueries, T::kThreads>(
      q_tile, {params.q.rows(sequence.batch, work.head, sequence.q_first), params.q.token}, work.first_query,
      sequence.q_tokens);
  copy(0);

  const Mask mask(common, sequence, work.batch, work.first_query + warp / 4 * 64);
  const float scale_log2 = common.scale * kLog2E;
  float out[T::kHeadDim / 2];
#pragma unroll
  for (float& sum : out) sum = 0;
  Running running{{-INFINITY, -INFINITY}, {0, 0}};
#pragma unroll 1
  for (int unit = 0; unit < work.units; ++unit) {
    copy(unit + 1);
    ptx::cp_async_wait<1>();
    __syncthreads();
    const std::uint32_t stage = ring + unit % 2 * 2 * T::kUnitBytes;
    float scores[32], factors[2];
    multiply_rows<typename T::Element, T::kHeadDim>(scores, q_tile, warp * 16, stage);
    mask.apply(scores, unit_token(work.entries, params.kv_block, unit), common, sequence, work.batch);
    exponentiate(scores, running, factors, scale_log2);
#pragma unroll
    for (int i = 0; i < T::kHeadDim / 2; ++i) out[i] *= factors[i / 2 % 2];
    std::uint32_t p[4][4];
    to_operand<typename T::Element>(p, scores);
    add_rows<typename T::Element, T::kHeadDim>(out, p, stage + T::kUnitBytes);
    __syncthreads();
  }
  ptx::cp_async_wait<0>();
  float* const lse =
      params.lse + (common.q_starts != nullptr
                        ? std::int64_t{work.head} * common.all_q_tokens + sequence.q_first
                        : (std::int64_t{work.batch} * common.heads + work.head) * common.q_tokens);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float& sum = running.sum[i];
    sum += __shfl_xor_sync(0xffffffff, sum, 1);
    sum += __shfl_xor_sync(0xffffffff, sum, 2);
    const int row = lane / 4 + 8 * i;
    if (lane % 4 == 0 && row < tokens)
      lse[first + row] = sum == 0 ? -INFINITY : running.top[i] * common.scale + logf(sum);
    sum = sum == 0 ? 0 : 1 / sum;
  }
  store_rows<typename T::Element>(params.out.rows(sequence.batch, work.head, sequence.q_first + first),
                                  params.out.token, tokens, out, running.sum);
}

}  // namespace sparseloom::kernels::cuda::attention::sm80
