// Functions that the special function unit computes in one instruction, with subnormals taken as 0, and a
// maximum that C++ lacks. Without .ftz (as in __expf and __fdividef) the compiler adds three or four
// instructions to each that scale subnormals.
#pragma once

#include <cuda_runtime.h>

namespace sparseloom::kernels::cuda::ptx {

/// 2^x with a relative error of 2^-22.5; 0 below 2^-126.
__device__ __forceinline__ float ex2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// 1 / x, within 1 ulp; 0 for |x| above 2^126.
__device__ __forceinline__ float rcp_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// The larger of the two, or NaN if either is NaN (fmaxf would drop it).
__device__ __forceinline__ float max_nan(float a, float b) {
  float larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
  return larger;
}

}  // namespace sparseloom::kernels::cuda::ptx
