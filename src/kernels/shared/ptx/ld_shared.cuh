// Loads from shared memory by 32-bit address. Through a pointer the compiler would recompute the window's
// base at every load, which on sm_90 includes a read of the cluster rank.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace sparseloom::kernels::cuda::ptx {

/// Loads kWords (1, 2 or 4) consecutive 32-bit words, aligned to their total size.
template <int kWords>
__device__ __forceinline__ void ld_shared(std::uint32_t (&to)[kWords], std::uint32_t shared) {
  static_assert(kWords == 1 || kWords == 2 || kWords == 4, "the widths of one load");
  if constexpr (kWords == 1) {
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(to[0]) : "r"(shared) : "memory");
  } else if constexpr (kWords == 2) {
    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(to[0]), "=r"(to[1]) : "r"(shared) : "memory");
  } else {
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared)
                 : "memory");
  }
}

}  // namespace sparseloom::kernels::cuda::ptx
