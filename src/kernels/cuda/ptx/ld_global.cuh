// Ordinary loads, for what may be written while the kernel waits for the one ahead of it (ptx/griddepcontrol.cuh).
#pragma once

#include <cuda_runtime.h>

namespace sparseloom::kernels::cuda::ptx {

template <class T>
__device__ __forceinline__ T ld_global(const T* global) {
  __builtin_assume(__isGlobal(global));
  return *global;
}

/// 16 aligned bytes, also through a pointer of which the compiler does not know that it is a global one.
template <>
__device__ __forceinline__ uint4 ld_global(const uint4* global) {
  uint4 value;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(global));
  return value;
}

}  // namespace sparseloom::kernels::cuda::ptx
