// The operand types of the Hopper kernels: one tag each.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/shared/ptx/convert.cuh"
#include "kernels/shared/ptx/sm90/wgmma.cuh"
#include "kernels/shared/ptx/sm90/wgmma_rs.cuh"
#include "sparseloom/dtype.h"

namespace sparseloom::kernels::cuda::attention {

struct Bf16 {
  static constexpr DType kDtype = DType::bf16;
  /// Both operands in shared memory; MN-major where so said.
  template <bool kMnMajorB, bool kMnMajorA, int kSums>
  static __device__ __forceinline__ void mma(float (&d)[kSums], std::uint64_t a, std::uint64_t b, bool add) {
    ptx::wgmma_bf16<kMnMajorB, kMnMajorA>(d, a, b, add);
  }
  /// a in registers, b MN-major.
  template <int kSums>
  static __device__ __forceinline__ void mma_rs(float (&d)[kSums], const std::uint32_t (&a)[4],
                                                std::uint64_t b) {
    ptx::wgmma_rs_bf16<true>(d, a, b);
  }
  static __device__ __forceinline__ std::uint32_t pair(float low, float high) {
    return ptx::cvt_rn_bf16x2(low, high);
  }
  static __device__ __forceinline__ float to_f32(std::uint16_t bits) { return ptx::cvt_f32_bf16(bits); }
};

struct F16 {
  static constexpr DType kDtype = DType::f16;
  template <bool kMnMajorB, bool kMnMajorA, int kSums>
  static __device__ __forceinline__ void mma(float (&d)[kSums], std::uint64_t a, std::uint64_t b, bool add) {
    ptx::wgmma_f16<kMnMajorB, kMnMajorA>(d, a, b, add);
  }
  template <int kSums>
  static __device__ __forceinline__ void mma_rs(float (&d)[kSums], const std::uint32_t (&a)[4],
                                                std::uint64_t b) {
    ptx::wgmma_rs_f16<true>(d, a, b);
  }
  static __device__ __forceinline__ std::uint32_t pair(float low, float high) {
    return ptx::cvt_rn_f16x2(low, high);
  }
  static __device__ __forceinline__ float to_f32(std::uint16_t bits) { return ptx::cvt_f32_f16(bits); }
};

}  // namespace sparseloom::kernels::cuda::attention
