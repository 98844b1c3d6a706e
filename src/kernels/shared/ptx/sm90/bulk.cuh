// Copies of contiguous bytes by the copy engine (cp.async.bulk).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/shared/ptx/l2_policy.cuh"

namespace sparseloom::kernels::cuda::ptx {

/// Starts copying `bytes` from global memory; `barrier` counts the bytes that arrive. Addresses and size must
/// be multiples of 16.
__device__ __forceinline__ void bulk_load(std::uint32_t shared, const void* global, std::uint32_t bytes,
                                          std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared),
      "l"(global), "r"(bytes), "r"(barrier)
      : "memory");
}

__device__ __forceinline__ void bulk_load(std::uint32_t shared, const void* global, std::uint32_t bytes,
                                          std::uint32_t barrier, L2Policy policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, "
      "[%3], %4;" ::"r"(shared),
      "l"(global), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}

/// Prefetches bytes into L2. This is allowed before the kernel that writes them has ended
/// (ptx/griddepcontrol.cuh). Address and size must be multiples of 16.
__device__ __forceinline__ void bulk_prefetch_l2(const void* global, std::uint32_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(global), "r"(bytes) : "memory");
}

}  // namespace sparseloom::kernels::cuda::ptx
