// Asynchronous copies (cp.async) from global to shared memory that bypass the registers. A copy moves 16
// bytes unless its name says otherwise; both addresses must be aligned to its size. The data is visible to
// the thread that issued the copy after its wait, and to other threads after a barrier that follows the wait.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/shared/ptx/address.cuh"
#include "kernels/shared/ptx/l2_policy.cuh"

namespace sparseloom::kernels::cuda::ptx {

/// Copies `source_bytes` (0 to 16) and writes zeros for the rest of the 16. With 0 the source is not read,
/// but it must still be a mapped address or at least a valid pointer value. `cg` caches in L2 only, for data
/// that no other warp of this SM reads again. The 128-byte hint makes L2 fetch 128 bytes from memory, because
/// rows are read whole, if by several copies.
__device__ __forceinline__ void cp_async_cg(std::uint32_t shared, const void* global,
                                            std::uint32_t source_bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
               "r"(source_bytes)
               : "memory");
}

/// Copies with a policy that says how long L2 should keep the data.
__device__ __forceinline__ void cp_async_cg(std::uint32_t shared, const void* global,
                                            std::uint32_t source_bytes, L2Policy policy) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2, %3;" ::"r"(shared),
               "l"(global), "r"(source_bytes), "l"(policy)
               : "memory");
}

/// Copies all 16 bytes. The constant size saves a register and the instructions that fill it.
__device__ __forceinline__ void cp_async_cg(std::uint32_t shared, const void* global) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
}

/// Copies one aligned 4-byte word, or writes zero when `source_bytes` is 0. It serves index lists, whose rows
/// start at any word. There is no 4-byte `cg`.
__device__ __forceinline__ void cp_async_ca_b32(std::uint32_t shared, const void* global,
                                                std::uint32_t source_bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared), "l"(global), "r"(source_bytes)
               : "memory");
}

/// Closes the group of all copies that this thread has issued since the last commit. A group may be empty.
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/// Waits until at most the youngest `kPending` groups of this thread are in flight.
template <int kPending>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

/// Like cp_async_cg for all 16 bytes; with `zero` it writes zeros and reads nothing. It uses the predicate
/// directly, where a count of source bytes that is 0 or 16 costs five instructions.
__device__ __forceinline__ void cp_async_cg_or_zero(std::uint32_t shared, const void* global, bool zero) {
  asm volatile(
      "{\n.reg .pred p;\n"
      "setp.ne.b32 p, %2, 0;\n"
      "cp.async.cg.shared.global.L2::128B [%0], [%1], 16, p;\n}" ::"r"(shared),
      "l"(global), "r"(static_cast<int>(zero))
      : "memory");
}

}  // namespace sparseloom::kernels::cuda::ptx
