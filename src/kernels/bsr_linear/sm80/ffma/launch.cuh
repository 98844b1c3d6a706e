// Launches a kernel with more than 48 KB of dynamic shared memory, which has to be allowed once per device
// and kernel.
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <cstdint>

namespace sparseloom::kernels::cuda::ffma {

/// Runs kKernel on the thread's current device, whose ordinal is `device`. Two threads may both request the
/// allowance, which is harmless.
template <auto kKernel, int kThreads, int kSharedBytes, class Params>
cudaError_t launch_kernel(const Params& params, dim3 grid, int device, cudaStream_t stream) noexcept {
  constexpr int kKnown = 64;  // devices whose allowance is remembered; others request it in every call
  static std::atomic<std::uint64_t> allowed{0};
  const bool known = device >= 0 && device < kKnown;
  const std::uint64_t bit = known ? std::uint64_t{1} << device : 0;
  if ((allowed.load(std::memory_order_acquire) & bit) == 0) {
    const cudaError_t status =
        cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
    if (status != cudaSuccess) return status;
    allowed.fetch_or(bit, std::memory_order_release);
  }
  kKernel<<<grid, kThreads, kSharedBytes, stream>>>(params);
  return cudaGetLastError();
}

}  // namespace sparseloom::kernels::cuda::ffma
