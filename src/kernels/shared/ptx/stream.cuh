// Global loads of data that is read once: the data bypasses L1 and, with evict_first, is the first to leave
// L2.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/shared/ptx/l2_policy.cuh"

namespace sparseloom::kernels::cuda::ptx {

/// Loads kWords (1, 2 or 4) consecutive 32-bit words, aligned to their total size. The 128-byte hint is the
/// amount that L2 fetches from DRAM.
template <int kWords>
__device__ __forceinline__ void ld_global_stream(std::uint32_t* to, const void* global, L2Policy policy) {
  static_assert(kWords == 1 || kWords == 2 || kWords == 4, "one load has 1, 2 or 4 words");
  if constexpr (kWords == 1) {
    asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.L2::128B.b32 %0, [%1], %2;"
                 : "=r"(to[0])
                 : "l"(global), "l"(policy));
  } else if constexpr (kWords == 2) {
    asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.L2::128B.v2.b32 {%0, %1}, [%2], %3;"
                 : "=r"(to[0]), "=r"(to[1])
                 : "l"(global), "l"(policy));
  } else {
    asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.L2::128B.v4.b32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "l"(global), "l"(policy));
  }
}

}  // namespace sparseloom::kernels::cuda::ptx
