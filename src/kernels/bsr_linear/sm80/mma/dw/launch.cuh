// Launches the instance of the dW kernel for the height of a block. The instances' files, one per dtype,
// include this.
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <cstdint>

#include "kernels/bsr_linear/sm80/mma/dw/kernel.cuh"

namespace sparseloom::kernels::cuda::mma::dw {

template <class Config>
cudaError_t launch_config(const MmaDwParams& params, dim3 grid, int device, cudaStream_t stream) noexcept {
  // More than 48 KB of shared memory must be allowed once per device and kernel; two threads may both do so
  // without harm.
  static std::atomic<std::uint64_t> allowed{0};
  const std::uint64_t bit = std::uint64_t{1} << (device & 63);
  if (device >= 64 || (allowed.load(std::memory_order_acquire) & bit) == 0) {
    const cudaError_t status = cudaFuncSetAttribute(
        mma_dw_kernel<Config>, cudaFuncAttributeMaxDynamicSharedMemorySize, Config::kSharedBytes);
    if (status != cudaSuccess) return status;
    if (device < 64) allowed.fetch_or(bit, std::memory_order_release);
  }
  mma_dw_kernel<Config><<<grid, kThreads, Config::kSharedBytes, stream>>>(params);
  return cudaGetLastError();
}

template <class Type>
cudaError_t launch(const MmaDwParams& params, int bm, dim3 grid, int device, cudaStream_t stream) noexcept {
  switch (bm) {
    case 8: return launch_config<Config<Type, 8>>(params, grid, device, stream);
    case 16: return launch_config<Config<Type, 16>>(params, grid, device, stream);
    case 32: return launch_config<Config<Type, 32>>(params, grid, device, stream);
    case 64: return launch_config<Config<Type, 64>>(params, grid, device, stream);
    case 128: return launch_config<Config<Type, 128>>(params, grid, device, stream);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace sparseloom::kernels::cuda::mma::dw
