// Between the launcher of the fp32 dW kernel and its instances, in a file of their own.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/sm80/ffma_sdd_cut.h"
#include "kernels/cuda/sm80/mma_sdd.h"

namespace sparseloom::kernels::cuda::ffma {

/// What the tensor-core kernel gets, and the height of a block, which that one has as a template argument.
struct SddParams : MmaSddParams {
  int bm;
};

/// grid.x: items x parts of a block row, parts running faster; grid.y: pieces of the tokens.
cudaError_t ffma_sdd(const SddParams& params, dim3 grid, int device, cudaStream_t stream) noexcept;

}  // namespace sparseloom::kernels::cuda::ffma
