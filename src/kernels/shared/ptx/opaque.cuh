// Hides from the compiler where a value comes from. The compiler then neither recomputes the value at every
// use nor moves what depends on it to an earlier place. No instruction is issued.
#pragma once

#include <cuda_runtime.h>

namespace sparseloom::kernels::cuda::ptx {

__device__ __forceinline__ void opaque(int& value) { asm volatile("" : "+r"(value)); }
__device__ __forceinline__ void opaque(unsigned& value) { asm volatile("" : "+r"(value)); }
__device__ __forceinline__ void opaque(const char*& value) { asm volatile("" : "+l"(value)); }

}  // namespace sparseloom::kernels::cuda::ptx
