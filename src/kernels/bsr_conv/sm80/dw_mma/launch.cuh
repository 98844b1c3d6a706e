// Launches the instance of conv_dw for the height of a block.
#pragma once

#include <cuda_runtime.h>

#include "kernels/bsr_conv/sm80/dw_mma/kernel.cuh"
#include "kernels/shared/early_launch.cuh"

namespace sparseloom::kernels::cuda::conv_dw {

template <class Config>
cudaError_t launch_config(const Params& params, dim3 grid, int device, cudaStream_t stream) noexcept {
  if (const cudaError_t status = allow_shared_memory<conv_dw_kernel<Config>>(Config::kSharedBytes, device);
      status != cudaSuccess)
    return status;
  conv_dw_kernel<Config><<<grid, mma::dw::kThreads, Config::kSharedBytes, stream>>>(params);
  return cudaGetLastError();
}

template <class Type>
cudaError_t launch(const Params& params, int bm, dim3 grid, int device, cudaStream_t stream) noexcept {
  switch (bm) {
    case 8: return launch_config<mma::dw::Config<Type, 8>>(params, grid, device, stream);
    case 16: return launch_config<mma::dw::Config<Type, 16>>(params, grid, device, stream);
    case 32: return launch_config<mma::dw::Config<Type, 32>>(params, grid, device, stream);
    case 64: return launch_config<mma::dw::Config<Type, 64>>(params, grid, device, stream);
    case 128: return launch_config<mma::dw::Config<Type, 128>>(params, grid, device, stream);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace sparseloom::kernels::cuda::conv_dw
