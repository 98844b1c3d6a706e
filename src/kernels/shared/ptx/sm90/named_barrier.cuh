// Barriers for some of a thread block's warps. Barrier 0 is __syncthreads.
#pragma once

#include <cuda_runtime.h>

namespace sparseloom::kernels::cuda::ptx {

/// Waits until kThreads threads, a multiple of 32, have reached barrier kIndex, 1 to 15. Their earlier writes
/// are visible afterwards.
template <int kIndex, int kThreads>
__device__ __forceinline__ void named_barrier_sync() {
  static_assert(kIndex > 0 && kIndex < 16 && kThreads % 32 == 0, "barriers count whole warps");
  asm volatile("barrier.sync %0, %1;" ::"n"(kIndex), "n"(kThreads) : "memory");
}

/// named_barrier_sync with the index in a register; it must be equal in all threads that meet. The compiler
/// then reserves all 16 barriers of the thread block.
template <int kThreads>
__device__ __forceinline__ void named_barrier_sync(int index) {
  static_assert(kThreads % 32 == 0, "barriers count whole warps");
  asm volatile("barrier.sync %0, %1;" ::"r"(index), "n"(kThreads) : "memory");
}

/// named_barrier_sync with a number of threads that is known only at run time.
__device__ __forceinline__ void named_barrier_sync(unsigned index, unsigned threads) {
  asm volatile("barrier.sync %0, %1;" ::"r"(index), "r"(threads) : "memory");
}

/// Arrives at a barrier for which others of its kThreads wait, and goes on.
template <int kThreads>
__device__ __forceinline__ void named_barrier_arrive(int index) {
  static_assert(kThreads % 32 == 0, "barriers count whole warps");
  asm volatile("barrier.arrive %0, %1;" ::"r"(index), "n"(kThreads) : "memory");
}

}  // namespace sparseloom::kernels::cuda::ptx
