// Few tokens: stored elements are on the lanes, and each reads its x from shared memory or, if x does not
// fit, from global memory.
#pragma once

#include <cstdint>

#include "kernels/csr_linear/sm80/element.cuh"

namespace sparseloom::kernels::cuda::csr {

constexpr int kGatherThreads = 512;

/// Copies kTokens rows of `from` [m, depth] from `first` on as [depth][kTokens]; zero past m.
template <class T, int kTokens>
__device__ __forceinline__ void stage(const typename T::Bits* from, std::int64_t stride, std::int64_t depth,
                                      std::int64_t first, std::int64_t m, Stretch<T, kTokens>* to) {
#pragma unroll 4
  for (std::int64_t i = threadIdx.x; i < depth; i += kGatherThreads) {
    Stretch<T, kTokens> tokens;
#pragma unroll
    for (int t = 0; t < kTokens; ++t)
      tokens.element[t] = first + t < m ? from[(first + t) * stride + i] : typename T::Bits{};
    to[i] = tokens;
  }
  __syncthreads();
}

template <class T>
struct GatherParams {
  Rows<T> out;
  const std::int32_t* slot;  // slot of each element of out.index; null: its own position
  const typename T::Bits* values;
};

/// Forward and dX: kLanes lanes share a row. Tokens are processed kTokens at a time, along grid.y.
template <class T, int kTokens, int kLanes, bool kStaged>
__global__ void __launch_bounds__(kGatherThreads) gather_kernel(const GatherParams<T> p) {
  extern __shared__ __align__(16) std::byte shared[];
  const Rows<T>& o = p.out;
  auto* const staged = reinterpret_cast<Stretch<T, kTokens>*>(shared);
  const std::int64_t row = (std::int64_t{blockIdx.x} * kGatherThreads + threadIdx.x) / kLanes;
  const int lane = threadIdx.x % kLanes;
  for (std::int64_t first = std::int64_t{blockIdx.y} * kTokens; first < o.m;
       first += std::int64_t{gridDim.y} * kTokens) {
    if (kStaged) stage<T, kTokens>(o.a, o.a_stride, o.depth, first, o.m, staged);
    float sum[kTokens] = {};
    if (row < o.rows) {
      const std::int32_t end = o.begin[row + 1];
      constexpr int kUnroll = kStaged ? 4 : 2;  // addresses of four elements' tokens would spill
#pragma unroll kUnroll
      for (std::int32_t at = o.begin[row] + lane; at < end; at += kLanes) {
        const std::int32_t i = o.index[at];
        const float w = T::widen(p.values[p.slot == nullptr ? at : p.slot[at]]);
        float x[kTokens];
        if (kStaged) {
          load<T>(staged[i].element, x);
        } else {
#pragma unroll
          for (int t = 0; t < kTokens; ++t)
            x[t] = first + t < o.m ? T::widen(o.a[(first + t) * o.a_stride + i]) : 0.0f;
        }
#pragma unroll
        for (int t = 0; t < kTokens; ++t) sum[t] = fmaf(x[t], w, sum[t]);
      }
    }
#pragma unroll
    for (int t = 0; t < kTokens; ++t)
#pragma unroll
      for (int apart = kLanes / 2; apart > 0; apart /= 2) sum[t] += __shfl_xor_sync(~0u, sum[t], apart);
    if (lane == 0 && row < o.rows) {
#pragma unroll
      for (int t = 0; t < kTokens; ++t)
        if (first + t < o.m) o.write(first + t, row, sum[t]);
    }
    if (kStaged) __syncthreads();
  }
}

template <class T>
struct GatherDwParams {
  const std::int32_t *crow, *col;
  std::int64_t rows, cols, m;
  const typename T::Bits *dy, *x;
  std::int64_t dy_stride, x_stride;
  void* out;
  bool accumulate;
};

/// dW: kLanes lanes share a row. kStaged: at most kTokens tokens.
template <class T, int kTokens, int kLanes, bool kStaged>
__global__ void __launch_bounds__(kGatherThreads) gather_dw_kernel(const GatherDwParams<T> p) {
  extern __shared__ __align__(16) std::byte shared[];
  auto* const staged = reinterpret_cast<Stretch<T, kTokens>*>(shared);
  if (kStaged) stage<T, kTokens>(p.x, p.x_stride, p.cols, 0, p.m, staged);
  const std::int64_t row = (std::int64_t{blockIdx.x} * kGatherThreads + threadIdx.x) / kLanes;
  if (row >= p.rows) return;
  float dy[kTokens];
#pragma unroll
  for (int t = 0; t < kTokens; ++t) dy[t] = kStaged && t < p.m ? T::widen(p.dy[t * p.dy_stride + row]) : 0.0f;
  const std::int32_t end = p.crow[row + 1];
#pragma unroll 4
  for (std::int32_t at = p.crow[row] + static_cast<int>(threadIdx.x % kLanes); at < end; at += kLanes) {
    const std::int32_t i = p.col[at];
    float sum = 0;
    if (kStaged) {
      float x[kTokens];
      load<T>(staged[i].element, x);
#pragma unroll
      for (int t = 0; t < kTokens; ++t) sum = fmaf(dy[t], x[t], sum);
    } else {
      for (std::int64_t t = 0; t < p.m; ++t)
        sum = fmaf(T::widen(p.dy[t * p.dy_stride + row]), T::widen(p.x[t * p.x_stride + i]), sum);
    }
    write_dw<T>(p.out, p.accumulate, at, sum);
  }
}

}  // namespace sparseloom::kernels::cuda::csr
