// The element types of wgmma::dw: a tag for each defines the layout of its operands, the products and the
// stores. The reduction runs along the tokens of both X and dY.
//
//   Bf16, F16   Each token is a row, as the caller stores it (MN-major): wgmma transposes 16-bit operands
//               itself.
//   Tf32        The tokens of a column are a row (K-major), the only layout in which wgmma takes wider types:
//               operands/transpose.h transposes the operands beforehand.
//   Bf16x3       bf16x3: each token of fp32 is three rows, one for each plane of bf16. The planes of a step
//               lie one below the other; wgmma/split_bf16x3/tokens.h makes them.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/bsr_linear/sm90/wgmma/dw/deal.h"
#include "kernels/shared/operands/tensor_map.h"
#include "kernels/shared/ptx/convert.cuh"
#include "kernels/shared/ptx/sm90/tma.cuh"
#include "kernels/shared/ptx/sm90/wgmma.cuh"

namespace sparseloom::kernels::cuda::wgmma::dw {

/// The layout in which each token is a row. A step has kPlanes x tokens rows, one plane below the other.
template <int kPlanes_>
struct TokensAsRows {
  static constexpr int kPlanes = kPlanes_;
  static constexpr ptx::Swizzle swizzle(int columns) {
    return columns == 64 ? ptx::Swizzle::bytes128 : ptx::Swizzle::bytes64;
  }
  static constexpr int k_bytes(int columns) { return 16 * columns * 2; }  // stride between wgmmas: 16 tokens
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

/// fp32 that TMA rounds to TF32 as it loads.
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

/// bf16x3: each fp32 value is three bf16, and six of their nine products are added. Long sums in the tensor
/// cores lose bits, so each ends with its step and is added to fp32 registers (kPromoted).
struct Bf16x3 : TokensAsRows<3> {
  static constexpr StepShape kStep = kStepBf16x3;
  static constexpr bool kOutF32 = true, kPromoted = true;
  struct Product {
    int x, dy;  // planes: high, middle, low
  };
  // The products in ascending order of size. The three left out are below 2^-21 of the whole product.
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

}  // namespace sparseloom::kernels::cuda::wgmma::dw
