// Conversions between fp32 and the 16-bit formats. We wrap the instructions ourselves because cuda_bf16.h and
// cuda_fp16.h cost a second of compilation per file.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace sparseloom::kernels::cuda::ptx {

/// Rounds to two bf16, to nearest even, with `low` in the lower half. NaN stays NaN.
__device__ __forceinline__ std::uint32_t cvt_rn_bf16x2(float low, float high) {
  std::uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

/// Rounds to two bf16 towards zero. The result is never larger than its input, so finite stays finite. NaN
/// stays NaN.
__device__ __forceinline__ std::uint32_t cvt_rz_bf16x2(float low, float high) {
  std::uint32_t pair;
  asm("cvt.rz.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

/// Rounds to two f16, to nearest even, with `low` in the lower half. Values beyond 65504 become infinite; NaN
/// stays NaN.
__device__ __forceinline__ std::uint32_t cvt_rn_f16x2(float low, float high) {
  std::uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

__device__ __forceinline__ float cvt_f32_bf16(std::uint16_t bits) {
  return __uint_as_float(std::uint32_t{bits} << 16);
}

__device__ __forceinline__ float cvt_f32_f16(std::uint16_t bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}

}  // namespace sparseloom::kernels::cuda::ptx
