// Copies of contiguous bytes by the copy engine, and what lets a launch begin before the one ahead of it has ended.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace sparseloom::kernels::cuda::ptx {

/// Starts copying `bytes` from global memory; they arrive at `barrier`. Addresses and size in multiples of 16.
__device__ __forceinline__ void bulk_load(std::uint32_t shared, const void* global, std::uint32_t bytes, std::uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared), "l"(global),
               "r"(bytes), "r"(barrier)
               : "memory");
}

/// Asks for bytes in L2, where everyone's stores meet: allowed before what writes them has ended. Multiples of 16.
__device__ __forceinline__ void bulk_prefetch_l2(const void* global, std::uint32_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(global), "r"(bytes) : "memory");
}

/// Waits until the kernels that this launch depends on have ended and what they wrote is visible. At once where the launch did not
/// ask to begin early (cudaLaunchAttributeProgrammaticStreamSerialization).
__device__ __forceinline__ void wait_for_earlier_kernels() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

/// Once all thread blocks have said so, a launch that asked for it may begin beside this one.
__device__ __forceinline__ void let_next_kernel_begin() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

}  // namespace sparseloom::kernels::cuda::ptx
