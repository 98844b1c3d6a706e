// Entry of the kernels sm90_split and sm90_split_narrow: it splits the values into planes and runs the
// forward product over them. For dx, these are the planes of the transposed blocks.
#include "kernels/bsr_linear/sm90/wgmma/entry.h"
#include "kernels/bsr_linear/sm90/wgmma/forward/entry.h"
#include "kernels/bsr_linear/sm90/wgmma/forward/launch.cuh"
#include "kernels/bsr_linear/sm90/wgmma/split_bf16x3/blocks.h"

namespace sparseloom::kernels::cuda {
namespace wgmma::forward {
namespace {

int bf16x3(const MatmulArgs& args, const Schedule& schedule) noexcept {
  const IndexView& index = args.index;
  const bool dx = args.direction == Direction::dx;
  if (args.m == 0 || (dx ? index.cols : index.rows) == 0) return cudaSuccess;
  MatmulArgs forward = args;
  forward.transposed = {};
  if (dx) {
    forward.transposed.slot = args.transposed.slot;
    forward.direction = Direction::forward;
    forward.index = {index.cols,   index.rows,           {index.block.cols, index.block.rows},
                     index.blocks, args.transposed.ccol, args.transposed.row};
    forward.bias = nullptr;
    forward.activation = Activation::none;
  }
  if (!possible(operands_of<Forward, Bf16x3>(forward)))
    return cudaErrorInvalidValue;  // nothing was launched yet
  const cudaError_t status =
      bf16x3_blocks(args.workspace, static_cast<const float*>(args.values), forward.transposed.slot,
                    index.blocks, index.block, static_cast<cudaStream_t>(args.stream));
  return status != cudaSuccess ? status : launch<Forward, Bf16x3>(forward, schedule);
}

}  // namespace
}  // namespace wgmma::forward

int sm90_split_forward(const MatmulArgs& args, const Schedule& schedule) noexcept {
  if (args.direction == Direction::dw || args.dtype != DType::f32 || args.residual != nullptr)
    return cudaErrorInvalidValue;
  return wgmma::forward::bf16x3(args, schedule);
}

}  // namespace sparseloom::kernels::cuda
