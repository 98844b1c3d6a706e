// What lets a launch begin before the one ahead of it on the stream has ended (programmatic dependent launch;
// the host's side is kernels/cuda/early_launch.cuh). Nothing before compute capability 9.0, whose launches
// wait on their own.
//
// The rules, for every kernel that is launched so: nothing that another kernel may write is read before
// wait_for_earlier_kernels, and nothing is written; asking L2 for it is allowed, since everyone's stores meet
// there. Behind it such data must not take the read-only path (__ldg), whose lines, and whose loads in the
// compiler's hands, may be older than the wait: ptx/ld_global.cuh.
#pragma once

#include <cuda_runtime.h>

namespace sparseloom::kernels::cuda::ptx {

/// Waits until the kernels that this launch depends on have ended and what they wrote is visible. At once
/// where the launch did not ask to begin early.
__device__ __forceinline__ void wait_for_earlier_kernels() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// Once all thread blocks have said so, a launch that asked for it may begin beside this one. Not before
/// wait_for_earlier_kernels: so a kernel that has begun knows that all but the one before it have ended.
__device__ __forceinline__ void let_next_kernel_begin() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// Asks L2 for the line that holds an address.
__device__ __forceinline__ void prefetch_line_l2(const void* global) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(global) : "memory");
}

}  // namespace sparseloom::kernels::cuda::ptx
