// What wgmma_sdd multiplies and writes, one tag per type, and how its operands lie: both X and dY are read
// down their tokens.
//
//   16-bit   tokens as rows, as in memory (MN-major): wgmma turns 16-bit operands itself
//   TF32     a column's tokens as a row (K-major), the one way wgmma takes wider ones: turned before, by
//   transpose_tokens.h split    fp32 as planes of bf16, one under the other in each step, tokens as rows:
//   split_tokens.h
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/ptx/convert.cuh"
#include "kernels/cuda/ptx/sm90/tma.cuh"
#include "kernels/cuda/ptx/sm90/wgmma.cuh"
#include "kernels/cuda/sm90/tensor_map.h"
#include "kernels/cuda/sm90/wgmma_sdd_deal.h"

namespace sparseloom::kernels::cuda::wgmma_sdd {

/// A step of kPlanes x tokens rows, one plane under the other.
template <int kPlanes_>
struct TokensAsRows {
  static constexpr int kPlanes = kPlanes_;
  static constexpr ptx::Swizzle swizzle(int columns) {
    return columns == 64 ? ptx::Swizzle::bytes128 : ptx::Swizzle::bytes64;
  }
  static constexpr int k_bytes(int columns) {
    return 16 * columns * 2;
  }  // what a wgmma takes: 16 tokens further
  static constexpr std::uint64_t descriptor(int columns, int box_bytes) {
    return ptx::wgmma_descriptor(swizzle(columns), 8 * columns * 2, box_bytes);
  }
  static constexpr TensorMapBox box(const StepShape& step, int columns) {
    return {kPlanes * step.tokens, columns, columns * 2};
  }
  static __device__ __forceinline__ void load(std::uint32_t to, const CUtensorMap* map, std::int32_t column,
                                              std::int32_t row, std::uint32_t full) {
    ptx::tma_load_2d(to, map, column, row, full);
  }
};

struct Bf16 : TokensAsRows<1> {
  static constexpr StepShape kStep = kStep16;
  static constexpr bool kOutF32 = false, kPromoted = false;
  template <int kSums>
  static __device__ __forceinline__ void mma(float (&d)[kSums], std::uint64_t x, std::uint64_t dy) {
    ptx::wgmma_bf16<true, true>(d, x, dy);
  }
  static __device__ __forceinline__ std::uint32_t pair(float low, float high) {
    return ptx::cvt_rn_bf16x2(low, high);
  }
};

struct F16 : TokensAsRows<1> {
  static constexpr StepShape kStep = kStep16;
  static constexpr bool kOutF32 = false, kPromoted = false;
  template <int kSums>
  static __device__ __forceinline__ void mma(float (&d)[kSums], std::uint64_t x, std::uint64_t dy) {
    ptx::wgmma_f16<true, true>(d, x, dy);
  }
  static __device__ __forceinline__ std::uint32_t pair(float low, float high) {
    return ptx::cvt_rn_f16x2(low, high);
  }
};

/// fp32 that TMA rounds to TF32 on its way.
struct Tf32 {
  static constexpr StepShape kStep = kStepTf32;
  static constexpr bool kOutF32 = true, kPromoted = false;
  static constexpr int kPlanes = 1;
  static constexpr int k_bytes(int) { return 32; }
  static constexpr std::uint64_t descriptor(int, int) {
    return ptx::wgmma_descriptor(ptx::Swizzle::bytes128, 8 * 128, 0);
  }
  static constexpr TensorMapBox box(const StepShape& step, int columns) {
    return {columns, step.tokens, step.tokens * 4};
  }
  static __device__ __forceinline__ void load(std::uint32_t to, const CUtensorMap* map, std::int32_t column,
                                              std::int32_t token, std::uint32_t full) {
    ptx::tma_load_2d(to, map, token, column, full);
  }
  template <int kSums>
  static __device__ __forceinline__ void mma(float (&d)[kSums], std::uint64_t x, std::uint64_t dy) {
    ptx::wgmma_tf32(d, x, dy);
  }
};

/// fp32 as three bf16 each, six products of which are added. The tensor cores' own sums lose bits when they
/// are longer: they end with each step and are added up in fp32 registers (kPromoted).
struct Split : TokensAsRows<3> {
  static constexpr StepShape kStep = kStepSplit;
  static constexpr bool kOutF32 = true, kPromoted = true;
  struct Product {
    int x, dy;  // planes: high, middle, low
  };
  // From the smallest to the largest. The three left out stay below 2^-21 of the product.
  static constexpr int kProducts = 6;
  static __device__ constexpr Product product(int i) {
    constexpr Product kOrder[kProducts] = {{0, 2}, {2, 0}, {1, 1}, {0, 1}, {1, 0}, {0, 0}};
    return kOrder[i];
  }
  template <int kSums>
  static __device__ __forceinline__ void mma(float (&d)[kSums], std::uint64_t x, std::uint64_t dy, bool add) {
    ptx::wgmma_bf16<true, true>(d, x, dy, add);
  }
};

}  // namespace sparseloom::kernels::cuda::wgmma_sdd
