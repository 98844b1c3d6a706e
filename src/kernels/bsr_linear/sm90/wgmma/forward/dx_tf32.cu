// The instance of kernel.cuh for dx in TF32. wgmma reads 32-bit operands along the reduction only, so the
// blocks are transposed into the workspace, in the order of the transposed index, and the forward product of
// that matrix follows. Reading and writing the values takes a small fraction of the product's time
// (measured).
#include "kernels/bsr_linear/sm90/wgmma/forward/entry.h"
#include "kernels/bsr_linear/sm90/wgmma/forward/launch.cuh"
#include "kernels/shared/operands/transpose.h"

namespace sparseloom::kernels::cuda::wgmma::forward {

int dx_tf32(const MatmulArgs& args, const Schedule& schedule) noexcept {
  const IndexView& index = args.index;
  if (args.m == 0 || index.cols == 0) return cudaSuccess;
  MatmulArgs forward = args;
  forward.direction = Direction::forward;
  forward.index = {index.cols,   index.rows,           {index.block.cols, index.block.rows},
                   index.blocks, args.transposed.ccol, args.transposed.row};
  forward.values = args.workspace;
  forward.bias = nullptr;
  forward.activation = Activation::none;
  if (!possible(operands_of<Forward, Tf32>(forward)))
    return cudaErrorInvalidValue;  // nothing was launched yet
  const cudaError_t status = transpose_blocks(
      reinterpret_cast<float*>(args.workspace), static_cast<const float*>(args.values), args.transposed.slot,
      index.blocks, index.block, static_cast<cudaStream_t>(args.stream));
  return status != cudaSuccess ? status : forward_tf32(forward, schedule);
}

}  // namespace sparseloom::kernels::cuda::wgmma::forward
