// The backward kernels for GPUs from compute capability 8.0 on: dk and dv of a block of keys, a warp for each
// 16 of them, and dq of a block of queries likewise. Both walk over 64 tokens of the other side at a time,
// and give the same bits in every run.
#pragma once

#include "kernels/block_attention/cuda/key_work.cuh"
#include "kernels/block_attention/cuda/softmax.cuh"
#include "kernels/block_attention/cuda/work.cuh"
#include "kernels/block_attention/sm80/params.cuh"
#include "kernels/shared/ptx/address.cuh"
#include "kernels/shared/ptx/opaque.cuh"

namespace sparseloom::kernels::cuda::attention::sm80 {

/// kSide: tokens of the block of keys (keys_kernel) or queries (dq_kernel).
template <class Element_, int kHeadDim_, int kSide_>
struct BackwardTile {
  using Element = Element_;
  static constexpr int kHeadDim = kHeadDim_, kSide = kSide_, kThreads = 2 * kSide;
  static constexpr int kRowBytes = kHeadDim * 2, kUnitBytes = 64 * kRowBytes;
  // Two tiles of the block, two of the step, and its stats. One stage: two would leave no room beside the
  // tiles on GPUs with 100 KB.
  static constexpr int kSharedBytes = 2 * kSide * kRowBytes + 2 * kUnitBytes + 512;
};

/// The place in stats of the 64 queries from `first` on.
__device__ __forceinline__ std::int64_t stats_place(const Params& params, const Sequence& sequence, int batch,
                                                    int head, int first) {
  const bool ragged = params.common.q_starts != nullptr;
  return (ragged ? std::int64_t{head} : std::int64_t{batch} * params.common.heads + head) * params.places +
         first_place(sequence, batch, ragged) + first / 64;
}

template <class T>
__global__ void __launch_bounds__(T::kThreads, 1) keys_kernel(const __grid_constant__ Params params) {
  extern __shared__ __align__(128) std::byte shared_bytes[];
  const Common& common = params.common;
  const int tile = static_cast<int>((blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x);
  const KeyWork work(params, tile, T::kSide);
  const Sequence& sequence = work.sequence;
  if (work.first_key >= sequence.kv_tokens) return;
  int warp_row = static_cast<int>(threadIdx.x) / 32 * 16;
  std::uint32_t k = ptx::shared_address(shared_bytes);
  float* const stats = reinterpret_cast<float*>(shared_bytes + T::kSharedBytes - 512);
  const auto rows = [&](const Strided& tensor, int head, int first) {
    return Rows{tensor.rows(sequence.batch, head, first), tensor.token};
  };
  copy_rows<T::kHeadDim, T::kSide, T::kThreads>(k, rows(params.k, work.kv_head, sequence.kv_first),
                                                work.first_key, sequence.kv_tokens);
  copy_rows<T::kHeadDim, T::kSide, T::kThreads>(k + T::kSide * T::kRowBytes,
                                                rows(params.v, work.kv_head, sequence.kv_first),
                                                work.first_key, sequence.kv_tokens);
  const float scale_log2 = common.scale * kLog2E;
  float dk[T::kHeadDim / 2], dv[T::kHeadDim / 2];
#pragma unroll
  for (int i = 0; i < T::kHeadDim / 2; ++i) dk[i] = 0, dv[i] = 0;
#pragma unroll 1
  for (int i = 0; i < common.heads_per_kv; ++i) {
    const int head = work.kv_head * common.heads_per_kv + i;
    const Units list(params, work, head);
#pragma unroll 1
    for (int unit = 0; unit < list.units; ++unit) {
      const std::int32_t query = list.query(params, unit), first = query & ~Lists::kPartial;
      if (first >= sequence.q_tokens) continue;  // the second half of a last block of 128
      ptx::opaque(k);  // otherwise the addresses of all fragments are kept in registers between steps
      const std::uint32_t v = k + T::kSide * T::kRowBytes, q = v + T::kSide * T::kRowBytes;
      const std::uint32_t dout = q + T::kUnitBytes;
      __syncthreads();
      copy_rows<T::kHeadDim, 64, T::kThreads>(q, rows(params.q, head, sequence.q_first), first,
                                              sequence.q_tokens);
      copy_rows<T::kHeadDim, 64, T::kThreads>(dout, rows(params.dout, head, sequence.q_first), first,
                                              sequence.q_tokens);
      ptx::cp_async_commit();
      const float* const from = params.stats + stats_place(params, sequence, work.batch, head, first) * 128;
      if (threadIdx.x < 128) stats[threadIdx.x] = from[threadIdx.x];
      ptx::cp_async_wait<0>();
      __syncthreads();
      // By halves of the queries: P^T and dP^T of all 64 do not fit beside dk and dv.
#pragma unroll 1
      for (int half = 0; half < 64; half += 32) {
        const float2* const lse =
            reinterpret_cast<const float2*>(stats + half) + static_cast<int>(threadIdx.x) % 4;
        ptx::opaque(warp_row);
        float p[16], dp[16];
        std::uint32_t operand[2][4];
        multiply_rows<typename T::Element, T::kHeadDim, 32>(p, k, warp_row, q, half);
        if (is_masked(common, work, T::kSide, query))
          mask_scores(p, query + half, common, work, warp_row / 64);
#pragma unroll
        for (int j = 0; j < 16; ++j) {
          const float2 of_pair = lse[j / 4 * 4];
          p[j] = ptx::ex2_approx(p[j] * scale_log2 - (j % 2 == 0 ? of_pair.x : of_pair.y));
        }
        to_operand<typename T::Element>(operand, p);
        add_rows<typename T::Element, T::kHeadDim>(dv, operand, dout, half);
        multiply_rows<typename T::Element, T::kHeadDim, 32>(dp, v, warp_row, dout, half);
#pragma unroll
        for (int j = 0; j < 16; ++j) {
          const float2 of_pair = lse[32 + j / 4 * 4];  // delta
          dp[j] = p[j] * (dp[j] - (j % 2 == 0 ? of_pair.x : of_pair.y));
        }
        to_operand<typename T::Element>(operand, dp);
        add_rows<typename T::Element, T::kHeadDim>(dk, operand, q, half);
      }
    }
  }
  ptx::cp_async_wait<0>();  // of a tile that no query meets
  const int first = work.first_key + warp_row, tokens = sequence.kv_tokens - first;
  const auto store = [&](const Strided& tensor, const float(&sums)[T::kHeadDim / 2], float factor) {
    store_rows<typename T::Element>(tensor.rows(sequence.batch, work.kv_head, sequence.kv_first + first),
                                    tensor.token, tokens, sums, {factor, factor});
  };
  store(params.dk, dk, common.scale);
  store(params.dv, dv, 1);
}

template <class T>
__global__ void __launch_bounds__(T::kThreads, 1) dq_kernel(const __grid_constant__ Params params) {
  extern __shared__ __align__(128) std::byte shared_bytes[];
  const Common& common = params.common;
  const int tile =
      static_cast<int>((blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + gridDim.x - 1 - blockIdx.x);
  const Work work(params, tile, T::kSide);
  const Sequence& sequence = work.sequence;
  if (work.first_query >= sequence.q_tokens) return;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int first = work.first_query + warp * 16, tokens = sequence.q_tokens - first;
  std::uint32_t q = ptx::shared_address(shared_bytes);
  const int kv_head = work.head / common.heads_per_kv;
  const auto rows = [&](const Strided& tensor, int head, int from) {
    return Rows{tensor.rows(sequence.batch, head, from), tensor.token};
  };
  copy_rows<T::kHeadDim, T::kSide, T::kThreads>(q, rows(params.q, work.head, sequence.q_first),
                                                work.first_query, sequence.q_tokens);
  copy_rows<T::kHeadDim, T::kSide, T::kThreads>(q + T::kSide * T::kRowBytes,
                                                rows(params.dout, work.head, sequence.q_first),
                                                work.first_query, sequence.q_tokens);
  const Mask mask(common, sequence, work.batch, work.first_query + warp / 4 * 64);
  const float scale_log2 = common.scale * kLog2E;
  float lse[2] = {INFINITY, INFINITY}, delta[2] = {0, 0};
#pragma unroll
  for (int i = 0; i < 2; ++i)
    if (const int row = lane / 4 + 8 * i; row < tokens) {
      const std::int64_t place = stats_place(params, sequence, work.batch, work.head, first + row);
      lse[i] = params.stats[place * 128 + (first + row) % 64];
      delta[i] = params.stats[place * 128 + 64 + (first + row) % 64];
    }
  float dq[T::kHeadDim / 2];
#pragma unroll
  for (float& sum : dq) sum = 0;
#pragma unroll 1
  for (int unit = 0; unit < work.units; ++unit) {
    const std::int32_t key = unit_token(work.entries, params.kv_block, unit);
    ptx::opaque(q);  // as in keys_kernel
    const std::uint32_t dout = q + T::kSide * T::kRowBytes, k = dout + T::kSide * T::kRowBytes;
    const std::uint32_t v = k + T::kUnitBytes;
    __syncthreads();
    copy_rows<T::kHeadDim, 64, T::kThreads>(k, rows(params.k, kv_head, sequence.kv_first),
                                            key & ~Lists::kPartial, sequence.kv_tokens);
    copy_rows<T::kHeadDim, 64, T::kThreads>(v, rows(params.v, kv_head, sequence.kv_first),
                                            key & ~Lists::kPartial, sequence.kv_tokens);
    ptx::cp_async_commit();
    ptx::cp_async_wait<0>();
    __syncthreads();
    float p[32], dp[32];
    std::uint32_t operand[4][4];
    multiply_rows<typename T::Element, T::kHeadDim>(p, q, warp * 16, k);
    multiply_rows<typename T::Element, T::kHeadDim>(dp, dout, warp * 16, v);
    mask.apply(p, key, common, sequence, work.batch);
#pragma unroll
    for (int i = 0; i < 32; ++i)
      dp[i] = ptx::ex2_approx(p[i] * scale_log2 - lse[i / 2 % 2]) * (dp[i] - delta[i / 2 % 2]);
    to_operand<typename T::Element>(operand, dp);
    add_rows<typename T::Element, T::kHeadDim>(dq, operand, k);
  }
  ptx::cp_async_wait<0>();
  store_rows<typename T::Element>(params.dq.rows(sequence.batch, work.head, sequence.q_first + first),
                                  params.dq.token, tokens, dq, {common.scale, common.scale});
}

}  // namespace sparseloom::kernels::cuda::attention::sm80
