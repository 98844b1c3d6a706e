// Loads from shared memory, and ordinary global loads, for data that an earlier kernel may still write while
// this kernel waits for it (ptx/griddepcontrol.cuh).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/shared/ptx/l2_policy.cuh"

namespace sparseloom::kernels::cuda::ptx {

template <class T>
__device__ __forceinline__ T ld_global(const T* global) {
  __builtin_assume(__isGlobal(global));
  return *global;
}

/// Loads 16 aligned bytes, even through a pointer that the compiler does not know to be global.
template <>
__device__ __forceinline__ uint4 ld_global(const uint4* global) {
  uint4 value;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(global));
  return value;
}

/// Loads 16 aligned bytes, or returns zeros if not `exists`. It uses a predicate and no branch: at the end of
/// a branch ptxas waits for the loads of either side.
__device__ __forceinline__ uint4 ld_global_if(bool exists, const uint4* global) {
  uint4 value;
  asm volatile(
      "{\n.reg .pred p;\n"
      "setp.ne.b32 p, %5, 0;\n"
      "mov.b32 %0, 0;\nmov.b32 %1, 0;\nmov.b32 %2, 0;\nmov.b32 %3, 0;\n"
      "@p ld.global.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
      : "=&r"(value.x), "=&r"(value.y), "=&r"(value.z), "=&r"(value.w)
      : "l"(global), "r"(static_cast<int>(exists)));
  return value;
}

/// ld_global_if for four bytes.
__device__ __forceinline__ std::int32_t ld_global_if(bool exists, const std::int32_t* global) {
  std::int32_t value;
  asm volatile(
      "{\n.reg .pred p;\n"
      "setp.ne.b32 p, %2, 0;\n"
      "mov.b32 %0, 0;\n"
      "@p ld.global.b32 %0, [%1];\n}"
      : "=&r"(value)
      : "l"(global), "r"(static_cast<int>(exists)));
  return value;
}

/// ld_global_if for eight bytes.
__device__ __forceinline__ uint2 ld_global_if(bool exists, const uint2* global) {
  uint2 value;
  asm volatile(
      "{\n.reg .pred p;\n"
      "setp.ne.b32 p, %3, 0;\n"
      "mov.b32 %0, 0;\nmov.b32 %1, 0;\n"
      "@p ld.global.v2.u32 {%0, %1}, [%2];\n}"
      : "=&r"(value.x), "=&r"(value.y)
      : "l"(global), "r"(static_cast<int>(exists)));
  return value;
}

/// ld_global_if for eight bytes that are read once: they bypass L1 and are the first to leave L2.
__device__ __forceinline__ uint2 ld_global_once_if(bool exists, const uint2* global) {
  uint2 value;
  asm volatile(
      "{\n.reg .pred p;\n"
      "setp.ne.b32 p, %4, 0;\n"
      "mov.b32 %0, 0;\nmov.b32 %1, 0;\n"
      "@p ld.global.L1::no_allocate.L2::cache_hint.v2.u32 {%0, %1}, [%2], %3;\n}"
      : "=&r"(value.x), "=&r"(value.y)
      : "l"(global), "l"(L2Policy::evict_first), "r"(static_cast<int>(exists)));
  return value;
}

/// ld_global_if for two bytes.
__device__ __forceinline__ std::uint16_t ld_global_if(bool exists, const std::uint16_t* global) {
  std::uint16_t value;
  asm volatile(
      "{\n.reg .pred p;\n"
      "setp.ne.b32 p, %2, 0;\n"
      "mov.b16 %0, 0;\n"
      "@p ld.global.u16 %0, [%1];\n}"
      : "=&h"(value)
      : "l"(global), "r"(static_cast<int>(exists)));
  return value;
}

/// Loads kWords (1, 2 or 4) consecutive 32-bit words, aligned to their total size, by a 32-bit address.
/// Through a pointer the compiler would recompute the window's base at every load, which on sm_90 includes a
/// read of the cluster rank.
template <int kWords>
__device__ __forceinline__ void ld_shared(std::uint32_t (&to)[kWords], std::uint32_t shared) {
  static_assert(kWords == 1 || kWords == 2 || kWords == 4, "one load has 1, 2 or 4 words");
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
