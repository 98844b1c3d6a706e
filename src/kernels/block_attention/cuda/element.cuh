// The operand types: what all kernels need of one, and operands in registers.
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

/// The operand a of mma.sync and wgmma, of 16 columns each, from sums in registers.
template <class Element, int kSums>
__device__ __forceinline__ void to_operand(std::uint32_t (&operand)[kSums / 8][4],
                                           const float (&sums)[kSums]) {
#pragma unroll
  for (int k = 0; k < kSums / 8; ++k)
#pragma unroll
    for (int i = 0; i < 4; ++i) operand[k][i] = Element::pair(sums[8 * k + 2 * i], sums[8 * k + 2 * i + 1]);
}

}  // namespace sparseloom::kernels::cuda::attention
