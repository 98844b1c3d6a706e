// Device side of programmatic dependent launch, by which a kernel begins before the previous one on the
// stream has ended (the host side is kernels/shared/early_launch.cuh). Before compute capability 9.0 these
// functions do nothing: launches there wait on their own.
//
// Every kernel that is launched this way follows these rules. Before wait_for_earlier_kernels it reads
// nothing that another kernel may write, and it writes nothing; it may prefetch such data into L2, since all
// stores meet there. After the wait it must not read such data through the read-only path (__ldg): its cache
// lines may be older than the wait, and the compiler may move its loads ahead of the wait. It reads with
// ptx/ld.cuh instead.
#pragma once

#include <cuda_runtime.h>

namespace sparseloom::kernels::cuda::ptx {

/// Waits until the kernels that this launch depends on have ended and their writes are visible. It returns at
/// once if the launch did not ask to begin early.
__device__ __forceinline__ void wait_for_earlier_kernels() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// Allows the next kernel to begin. Once all thread blocks have called this, a launch that asked for it may
/// begin beside this one. Call it only after wait_for_earlier_kernels, so that a kernel that has begun knows
/// that all kernels but the one just before it have ended.
__device__ __forceinline__ void let_next_kernel_begin() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// Prefetches into L2 the cache line that holds an address.
__device__ __forceinline__ void prefetch_line_l2(const void* global) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(global) : "memory");
}

}  // namespace sparseloom::kernels::cuda::ptx
