// Interface between the launcher of the fp32 dW kernel and its instances, which have a file of their own.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/bsr_linear/sm80/ffma/dw_cut.h"
#include "kernels/bsr_linear/sm80/mma/dw/instances.h"

namespace sparseloom::kernels::cuda::ffma {

/// The parameters of the tensor-core kernel, and the height of a block, a template argument there.
struct DwParams : MmaDwParams {
  int bm;
};

/// grid.x: work items x row ranges of a block row, the latter varying faster; grid.y: segments of the tokens.
cudaError_t ffma_dw(const DwParams& params, dim3 grid, int device, cudaStream_t stream) noexcept;

}  // namespace sparseloom::kernels::cuda::ffma
