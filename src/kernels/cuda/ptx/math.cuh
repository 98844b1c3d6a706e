// What the special function unit gives in one instruction, subnormals as 0. Without .ftz the compiler wraps
// each in three or four more that scale subnormals; __expf and __fdividef are such. And a maximum that C++
// does not have.
#pragma once

#include <cuda_runtime.h>

namespace sparseloom::kernels::cuda::ptx {

/// 2^x, relative error 2^-22.5; 0 below 2^-126.
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

/// The larger one; NaN where either is (fmaxf drops it).
__device__ __forceinline__ float max_nan(float a, float b) {
  float larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
  return larger;
}

}  // namespace sparseloom::kernels::cuda::ptx
