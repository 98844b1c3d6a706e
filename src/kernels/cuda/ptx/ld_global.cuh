// Ordinary loads. A kernel that begins before the one ahead of it has ended (ptx/sm90/bulk.cuh) must not take the read-only path
// (__ldg): what it reads is written while it runs, and lines of that path may be older than its wait.
#pragma once

#include <cuda_runtime.h>

namespace sparseloom::kernels::cuda::ptx {

template <class T>
__device__ __forceinline__ T ld_global(const T* global) {
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
