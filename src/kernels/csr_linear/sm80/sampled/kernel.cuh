// dW: dY^T X at the stored elements, with both operands as [feature][token].
#pragma once

#include <cstdint>

#include "kernels/csr_linear/sm80/element.cuh"

namespace sparseloom::kernels::cuda::csr {

template <class Bits>
struct Transposed {
  const Bits* from;
  std::int64_t stride, features;
  Bits* to;
};

/// The two operands of dW.
template <class Bits>
struct TransposeParams {
  Transposed<Bits> first, second;
  std::int64_t m, padded;
};

constexpr int kSquare = 32, kSquareRows = 8;

/// [token][feature] -> [feature][token] of one of the matrices, with zeros for the tokens from m to
/// `padded`.
template <class Bits>
__global__ void __launch_bounds__(kSquare* kSquareRows) transpose_kernel(const TransposeParams<Bits> p) {
  __shared__ Bits square[kSquare][kSquare + 1];
  const Transposed<Bits> matrix = blockIdx.z == 0 ? p.first : p.second;
  const std::int64_t feature = std::int64_t{blockIdx.x} * kSquare;
  if (feature >= matrix.features) return;
  for (std::int64_t token = std::int64_t{blockIdx.y} * kSquare; token < p.padded;
       token += std::int64_t{gridDim.y} * kSquare) {
    const std::int64_t column = feature + threadIdx.x;
#pragma unroll
    for (int i = threadIdx.y; i < kSquare; i += kSquareRows)
      square[i][threadIdx.x] = token + i < p.m && column < matrix.features
                                   ? matrix.from[(token + i) * matrix.stride + column]
                                   : Bits{};
    __syncthreads();
#pragma unroll
    for (int i = threadIdx.y; i < kSquare; i += kSquareRows)
      if (feature + i < matrix.features)
        matrix.to[(feature + i) * p.padded + token + threadIdx.x] = square[threadIdx.x][i];
    __syncthreads();
  }
}

template <class T>
struct SampledParams {
  const std::int32_t *crow, *col;
  const typename T::Bits *dy, *x;
  void* out;  // of T, or fp32 to which the sums are added
  std::int64_t rows, padded;
  int split;  // warps per row
  bool accumulate;
};

constexpr int kSampledWarps = 8;

/// Adds lane l's 2 kHalf sums and those of lane l ^ kHalf, then half as many, and so on: the result is lane
/// l's sum of element l % (2 kHalf). A recursion, since nvcc does not unroll the loop and puts the sums into
/// local memory.
template <int kHalf, int kElements>
__device__ __forceinline__ void fold(float (&sum)[kElements]) {
  if constexpr (kHalf > 0) {
    const bool upper = (threadIdx.x & kHalf) != 0;
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      const float give = upper ? sum[i] : sum[i + kHalf], keep = upper ? sum[i + kHalf] : sum[i];
      sum[i] = keep + __shfl_xor_sync(~0u, give, kHalf);
    }
    fold<kHalf / 2>(sum);
  }
}

/// Adds up each of kElements sums over the lanes: afterwards lane l has that of element l % kElements.
template <int kElements>
__device__ __forceinline__ float added_up(float (&sum)[kElements]) {
  fold<kElements / 2>(sum);
  float all = sum[0];
#pragma unroll
  for (int apart = kElements; apart < 32; apart *= 2) all += __shfl_xor_sync(~0u, all, apart);
  return all;
}

/// A warp computes kElements stored elements of a row at a time, and its lanes kTokens tokens each. The warps
/// of a thread block have neighbouring rows, which store similar columns and find them in L1.
template <class T, int kTokens, int kElements>
__global__ void __launch_bounds__(32 * kSampledWarps, kTokens* kElements > 64 ? 2 : 3)
    sampled_kernel(const SampledParams<T> p) {
  const int lane = threadIdx.x;
  const std::int64_t row = std::int64_t{blockIdx.x} / p.split * kSampledWarps + threadIdx.y;
  if (row >= p.rows) return;
  const std::int64_t end = p.crow[row + 1];
  for (std::int64_t at = p.crow[row] + std::int64_t{blockIdx.x} % p.split * kElements; at < end;
       at += std::int64_t{p.split} * kElements) {
    // Lanes past the end repeat the last element.
    const std::int32_t column = p.col[min(at + lane % kElements, end - 1)];
    float sum[kElements] = {};
    for (std::int64_t token = lane * kTokens; token < p.padded; token += 32 * kTokens) {
      float dy[kTokens];
      load<T>(p.dy + row * p.padded + token, dy);
#pragma unroll
      for (int i = 0; i < kElements; ++i) {
        float x[kTokens];
        load<T>(p.x + std::int64_t{__shfl_sync(~0u, column, i)} * p.padded + token, x);
#pragma unroll
        for (int t = 0; t < kTokens; ++t) sum[i] = fmaf(dy[t], x[t], sum[i]);
      }
    }
    const float all = added_up<kElements>(sum);
    if (lane < kElements && at + lane < end) write_dw<T>(p.out, p.accumulate, at + lane, all);
  }
}

}  // namespace sparseloom::kernels::cuda::csr
