// Moves registers between the warpgroups of a thread block (setmaxnreg): a warpgroup that only issues copies
// releases registers for those that hold sums. The number per thread is a multiple of 8 from 24 to 256, and
// all four warps of a warpgroup execute the instruction.
#pragma once

#include <cuda_runtime.h>

namespace sparseloom::kernels::cuda::ptx {

/// Registers that each of `threads` threads gets at launch if the thread block is alone on its
/// multiprocessor. Claims that add up to more wait for ever: a claim can only take what another warpgroup of
/// the thread block has released, even if the multiprocessor has registers left.
constexpr int registers_at_launch(int threads) { return 64 * 1024 / threads / 8 * 8; }

template <int kRegisters>
__device__ __forceinline__ void release_registers_to() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

/// Waits until other warpgroups have released enough.
template <int kRegisters>
__device__ __forceinline__ void claim_registers_to() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace sparseloom::kernels::cuda::ptx
