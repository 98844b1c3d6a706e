// The operand types: what all kernels need of one.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/shared/ptx/convert.cuh"

namespace sparseloom::kernels::cuda::attention {

struct Bf16Element {
  static __device__ __forceinline__ std::uint32_t pair(float low, float high) {
    return ptx::cvt_rn_bf16x2(low, high);
  }
  static __device__ __forceinline__ float to_f32(std::uint16_t bits) { return ptx::cvt_f32_bf16(bits); }
};

struct F16Element {
  static __device__ __forceinline__ std::uint32_t pair(float low, float high) {
    return ptx::cvt_rn_f16x2(low, high);
  }
  static __device__ __forceinline__ float to_f32(std::uint16_t bits) { return ptx::cvt_f32_f16(bits); }
};

}  // namespace sparseloom::kernels::cuda::attention
