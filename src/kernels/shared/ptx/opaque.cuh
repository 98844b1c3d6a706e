// Hides the origin of a value from the compiler, which then neither recomputes the value at every use nor
// moves its uses to an earlier point. No instruction is issued.
#pragma once

#include <cuda_runtime.h>

namespace sparseloom::kernels::cuda::ptx {

__device__ __forceinline__ void opaque(int& value) { asm volatile("" : "+r"(value)); }
__device__ __forceinline__ void opaque(unsigned& value) { asm volatile("" : "+r"(value)); }
__device__ __forceinline__ void opaque(const char*& value) { asm volatile("" : "+l"(value)); }

}  // namespace sparseloom::kernels::cuda::ptx
