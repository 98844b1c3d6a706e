// The 16-bit elements: an mma of 16 outputs x 8 tokens x 16 k, and conversions.
#pragma once

#include <cstdint>

#include "kernels/shared/ptx/convert.cuh"
#include "kernels/shared/ptx/mma.cuh"

namespace sparseloom::kernels::cuda::decode_lines {

struct Bf16 {
  static __device__ __forceinline__ void mma(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                             std::uint32_t b1) {
    ptx::mma_m16n8k16_bf16(d, a, b0, b1);
  }
  static __device__ __forceinline__ float to_float(std::uint16_t bits) { return ptx::cvt_f32_bf16(bits); }
  static __device__ __forceinline__ std::uint32_t rounded(float low, float high) {
    return ptx::cvt_rn_bf16x2(low, high);
  }
};

struct F16 {
  static __device__ __forceinline__ void mma(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                             std::uint32_t b1) {
    ptx::mma_m16n8k16_f16(d, a, b0, b1);
  }
  static __device__ __forceinline__ float to_float(std::uint16_t bits) { return ptx::cvt_f32_f16(bits); }
  static __device__ __forceinline__ std::uint32_t rounded(float low, float high) {
    return ptx::cvt_rn_f16x2(low, high);
  }
};

}  // namespace sparseloom::kernels::cuda::decode_lines
