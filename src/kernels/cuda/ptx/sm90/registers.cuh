// Moves registers between the warpgroups of a thread block: one that only starts copies gives up what one
// that holds sums needs. A multiple of 8 per thread, 24 to 256; executed by all four warps of a warpgroup.
#pragma once

#include <cuda_runtime.h>

namespace sparseloom::kernels::cuda::ptx {

/// What a thread block alone on its multiprocessor gets for each of so many threads. Claims that come to more
/// wait for ever: what no warpgroup has released is not there, even if the multiprocessor has it.
constexpr int registers_at_launch(int threads) { return 64 * 1024 / threads / 8 * 8; }

template <int kRegisters>
__device__ __forceinline__ void release_registers_to() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

/// Waits until another warpgroup has given up enough.
template <int kRegisters>
__device__ __forceinline__ void claim_registers_to() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace sparseloom::kernels::cuda::ptx
