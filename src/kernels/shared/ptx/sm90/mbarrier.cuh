// Barriers in shared memory (mbarrier) that count arriving threads and the bytes of bulk copies. A barrier
// takes eight bytes, aligned to 8.
//
// A phase ends when all arrivals that the barrier was initialised with and all expected bytes have come; the
// next phase begins at once. A wait names the parity (0, 1, 0, ..) of the phase whose end it awaits; before
// the first phase ends, the phase of parity 1 counts as ended. An arrival releases, and a wait acquires, the
// writes of this thread block's threads and of the copies.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace sparseloom::kernels::cuda::ptx {

__device__ __forceinline__ void mbarrier_init(std::uint32_t barrier, std::uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

/// Makes initialised barriers visible to the copy engine. The other threads need a __syncthreads as well.
__device__ __forceinline__ void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void mbarrier_arrive(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/// Arrives, and makes the phase wait for `bytes` more.
__device__ __forceinline__ void mbarrier_arrive_expect_tx(std::uint32_t barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

/// Arrives once all earlier cp.async of this thread have completed. Their writes are visible after the end of
/// the phase.
__device__ __forceinline__ void mbarrier_arrive_behind_copies(std::uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

/// Whether the phase has ended. It does not wait.
__device__ __forceinline__ bool mbarrier_test_wait(std::uint32_t barrier, std::uint32_t parity) {
  std::uint32_t ended;
  asm volatile(
      "{\n.reg .pred p;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n}"
      : "=r"(ended)
      : "r"(barrier), "r"(parity)
      : "memory");
  return ended != 0;
}

/// Waits for the end of the phase. try_wait sleeps for a while in hardware, so that a waiting warp takes few
/// issue slots.
__device__ __forceinline__ void mbarrier_wait(std::uint32_t barrier, std::uint32_t parity) {
  asm volatile(
      "{\n.reg .pred p;\n"
      "again_%=:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
      "@!p bra again_%=;\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

}  // namespace sparseloom::kernels::cuda::ptx
