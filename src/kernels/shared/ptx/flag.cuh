// Flags in global memory with which one thread block signals another.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace sparseloom::kernels::cuda::ptx {

/// Stores `value` with release semantics: this thread's earlier writes, and those it saw across a barrier,
/// are visible to a thread that reads the value with ld_acquire_gpu.
__device__ __forceinline__ void st_release_gpu(std::uint64_t* flag, std::uint64_t value) {
  asm volatile("st.release.gpu.u64 [%0], %1;" ::"l"(flag), "l"(value) : "memory");
}

__device__ __forceinline__ std::uint64_t ld_acquire_gpu(const std::uint64_t* flag) {
  std::uint64_t value;
  asm volatile("ld.acquire.gpu.u64 %0, [%1];" : "=l"(value) : "l"(flag) : "memory");
  return value;
}

}  // namespace sparseloom::kernels::cuda::ptx
