// Tiles of tokens in shared memory, and fragments of mma.sync from them.
//
// A tile is [tokens][head_dim] of 16 bits. 16-byte chunk c of a row lies at chunk c ^ (row % 8), so that the
// eight rows of an 8 x 8 matrix fall into different banks.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/block_attention/cuda/element.cuh"
#include "kernels/shared/ptx/cp_async.cuh"
#include "kernels/shared/ptx/ldmatrix.cuh"
#include "kernels/shared/ptx/mma.cuh"

namespace sparseloom::kernels::cuda::attention::sm80 {

struct Bf16 : Bf16Element {
  static __device__ __forceinline__ void mma(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                             std::uint32_t b1) {
    ptx::mma_m16n8k16_bf16(d, a, b0, b1);
  }
};

struct F16 : F16Element {
  static __device__ __forceinline__ void mma(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                             std::uint32_t b1) {
    ptx::mma_m16n8k16_f16(d, a, b0, b1);
  }
};

/// A tensor's rows of one head: of token 0.
struct Rows {
  const std::uint16_t* data;
  std::int64_t stride;
};

template <int kHeadDim>
__device__ __forceinline__ std::uint32_t chunk_at(std::uint32_t tile, int row, int chunk) {
  return tile + static_cast<std::uint32_t>(row * kHeadDim * 2 + (chunk ^ (row % 8)) * 16);
}

/// Starts the copy of kTokens rows from `first` on; those from `end` on become zeros. kThreads threads call
/// it.
template <int kHeadDim, int kTokens, int kThreads>
__device__ __forceinline__ void copy_rows(std::uint32_t tile, const Rows& rows, int first, int end) {
  constexpr int kChunks = kHeadDim / 8;
#pragma unroll 2
  for (int i = 0; i < kTokens * kChunks / kThreads; ++i) {
    const int at = i * kThreads + static_cast<int>(threadIdx.x), row = at / kChunks, chunk = at % kChunks;
    const bool exists = first + row < end;
    ptx::cp_async_cg_or_zero(chunk_at<kHeadDim>(tile, row, chunk),
                             rows.data + (exists ? first + row : 0) * rows.stride + chunk * 8, !exists);
  }
}

/// a = rows `row` .. row + 15 and columns 16 k .. of a tile.
template <int kHeadDim>
__device__ __forceinline__ void load_a(std::uint32_t (&a)[4], std::uint32_t tile, int row, int k) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  ptx::ldmatrix_x4(a, chunk_at<kHeadDim>(tile, row + lane % 16, 2 * k + lane / 16));
}

/// sums[16][kRows] = a b^T over head_dim: rows of one tile times kRows of another, from b_row on.
template <class Element, int kHeadDim, int kRows = 64>
__device__ __forceinline__ void multiply_rows(float (&sums)[kRows / 2], std::uint32_t a_tile, int a_row,
                                              std::uint32_t b_tile, int b_row = 0) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (float& sum : sums) sum = 0;
#pragma unroll 1  // whole, its loads would be hoisted into more registers than there are
  for (int k = 0; k < kHeadDim / 16; ++k) {
    std::uint32_t a[4], b[4];
    load_a<kHeadDim>(a, a_tile, a_row, k);
#pragma unroll
    for (int n = 0; n < kRows / 16; ++n) {
      ptx::ldmatrix_x4(
          b, chunk_at<kHeadDim>(b_tile, b_row + n * 16 + lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2));
      Element::mma(*reinterpret_cast<float(*)[4]>(sums + 8 * n), a, b[0], b[1]);
      Element::mma(*reinterpret_cast<float(*)[4]>(sums + 8 * n + 4), a, b[2], b[3]);
    }
  }
}

/// sums[16][head_dim] += a b, a of 16 kSteps columns in registers and b as many rows of a tile, from b_row
/// on.
template <class Element, int kHeadDim, int kSteps>
__device__ __forceinline__ void add_rows(float (&sums)[kHeadDim / 2], const std::uint32_t (&a)[kSteps][4],
                                         std::uint32_t b_tile, int b_row = 0) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int k = 0; k < kSteps; ++k)
#pragma unroll
    for (int n = 0; n < kHeadDim / 16; ++n) {
      std::uint32_t b[4];
      ptx::ldmatrix_x4_trans(b, chunk_at<kHeadDim>(b_tile, b_row + k * 16 + lane % 16, 2 * n + lane / 16));
      Element::mma(*reinterpret_cast<float(*)[4]>(sums + 8 * n), a[k], b[0], b[1]);
      Element::mma(*reinterpret_cast<float(*)[4]>(sums + 8 * n + 4), a[k], b[2], b[3]);
    }
}

/// Writes a warp's sums [16][head_dim] times factors[i] (rows t / 4 and 8 further) straight to memory, in 16
/// bits. `to`: of its first token, of which `tokens` exist.
template <class Element, int kSums>
__device__ __forceinline__ void store_rows(std::uint16_t* to, std::int64_t stride, int tokens,
                                           const float (&sums)[kSums], const float (&factors)[2]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = lane / 4 + 8 * i;
    if (row >= tokens) continue;
#pragma unroll
    for (int j = 0; j < kSums / 4; ++j)
      *reinterpret_cast<std::uint32_t*>(to + row * stride + 8 * j + 2 * (lane % 4)) =
          Element::pair(sums[4 * j + 2 * i] * factors[i], sums[4 * j + 2 * i + 1] * factors[i]);
  }
}

}  // namespace sparseloom::kernels::cuda::attention::sm80
