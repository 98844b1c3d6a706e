// Interface between the launcher of conv_dw and its instances.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/bsr_conv/walk.h"
#include "kernels/bsr_linear/sm80/mma/dw/instances.h"

namespace sparseloom::kernels::cuda::conv_dw {

/// In the base, m counts the pixels of dy; elements are blocks * taps * bm * bn.
struct Params : MmaDwParams {
  conv::Axis axis[3];  // the outermost first
  unsigned taps;
  bool few_taps;  // conv::few_taps, for an x that is copied in chunks and spans less than 2^31 elements
};

/// grid.x: items, grid.y: segments of the pixels.
cudaError_t conv_dw_bf16(const Params& params, int bm, dim3 grid, int device, cudaStream_t stream) noexcept;
cudaError_t conv_dw_f16(const Params& params, int bm, dim3 grid, int device, cudaStream_t stream) noexcept;
cudaError_t conv_dw_tf32(const Params& params, int bm, dim3 grid, int device, cudaStream_t stream) noexcept;

}  // namespace sparseloom::kernels::cuda::conv_dw
