// The parameters that the Hopper kernel of a convolution's dW adds to those of a product's.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/bsr_conv/sm90/forward_wgmma/pixels.cuh"
#include "kernels/bsr_linear/sm90/wgmma/dw/schedule.cuh"

namespace sparseloom::kernels::cuda::wgmma_conv_dw {

/// In the base, x is an im2col map. A block under a tap is a block of the kernel: block b is stored block b /
/// taps, and block row r has blocks crow[r] taps .. crow[r + 1] taps - 1.
struct Params : wgmma::dw::Params {
  wgmma_conv::PixelWalk walk;
};

__device__ __forceinline__ std::int32_t list_begin(const Params& params, std::int32_t row) {
  return __ldg(params.crow + row) * static_cast<std::int32_t>(params.walk.taps);
}
__device__ __forceinline__ std::int32_t block_column(const Params& params, std::int32_t block) {
  return __ldg(params.col + static_cast<unsigned>(block) / params.walk.taps);
}

}  // namespace sparseloom::kernels::cuda::wgmma_conv_dw
