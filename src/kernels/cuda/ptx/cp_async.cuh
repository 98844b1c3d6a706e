// Copies from global to shared memory that pass by the registers. 16 bytes each unless named otherwise, both
// addresses aligned to the size. Visible to the thread that issued them after its wait, to the others after a
// barrier behind that.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/ptx/address.cuh"
#include "kernels/cuda/ptx/l2_policy.cuh"

namespace sparseloom::kernels::cuda::ptx {

/// Copies `source_bytes` (0 to 16) and writes zeros for the rest of the 16. With 0 the source is not read but
/// must be a mapped address or at least a valid pointer value. cg: through L2 only, for data that no other
/// warp of this SM reads again. The 128-byte hint is for what L2 fetches from memory: rows are read whole, if
/// by several chunks.
__device__ __forceinline__ void cp_async_cg(std::uint32_t shared, const void* global,
                                            std::uint32_t source_bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
               "r"(source_bytes)
               : "memory");
}

/// The same for data that L2 need not keep, or the contrary.
__device__ __forceinline__ void cp_async_cg(std::uint32_t shared, const void* global,
                                            std::uint32_t source_bytes, L2Policy policy) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2, %3;" ::"r"(shared),
               "l"(global), "r"(source_bytes), "l"(policy)
               : "memory");
}

/// All 16 bytes: the same with a constant size, which spares a register and the instructions that fill it.
__device__ __forceinline__ void cp_async_cg(std::uint32_t shared, const void* global) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
}

/// As cp_async_cg, but kept in L1 too, for data that other thread blocks of this SM read soon after.
__device__ __forceinline__ void cp_async_ca(std::uint32_t shared, const void* global,
                                            std::uint32_t source_bytes) {
  asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
               "r"(source_bytes)
               : "memory");
}

/// One aligned 4-byte word, or zero when `source_bytes` is 0. For index lists, whose rows start anywhere.
/// There is no 4-byte cg.
__device__ __forceinline__ void cp_async_ca_b32(std::uint32_t shared, const void* global,
                                                std::uint32_t source_bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared), "l"(global), "r"(source_bytes)
               : "memory");
}

/// Closes the group of all copies this thread has issued since the last commit; an empty group is a group.
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/// Waits until at most the youngest `kPending` groups of this thread are unfinished.
template <int kPending>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace sparseloom::kernels::cuda::ptx
