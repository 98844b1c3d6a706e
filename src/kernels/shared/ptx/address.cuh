// Addresses in the shared-memory window. ldmatrix and cp.async take such 32-bit addresses; they also cost
// half the registers of a generic pointer.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace sparseloom::kernels::cuda::ptx {

__device__ __forceinline__ std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ __forceinline__ std::uint32_t ld_shared_b32(std::uint32_t shared) {
  std::uint32_t value;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(value) : "r"(shared) : "memory");
  return value;
}

__device__ __forceinline__ void st_shared_b32(std::uint32_t shared, std::uint32_t value) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(shared), "r"(value) : "memory");
}

/// The address must be aligned to 8 bytes.
__device__ __forceinline__ void st_shared_v2_f32(std::uint32_t shared, float x, float y) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(shared), "f"(x), "f"(y) : "memory");
}

/// The address must be aligned to 16 bytes.
__device__ __forceinline__ void st_shared_v4_b32(std::uint32_t shared, const std::uint32_t (&value)[4]) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(shared), "r"(value[0]), "r"(value[1]),
               "r"(value[2]), "r"(value[3])
               : "memory");
}

}  // namespace sparseloom::kernels::cuda::ptx
