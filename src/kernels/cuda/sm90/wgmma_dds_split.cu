// sm90_split: the values' planes, then the forward product over them; dx over the planes of the transposed
// blocks.
#include "kernels/cuda/launch.h"
#include "kernels/cuda/sm90/residual_behind.h"
#include "kernels/cuda/sm90/split_blocks.h"
#include "kernels/cuda/sm90/wgmma_dds.h"
#include "kernels/cuda/sm90/wgmma_dds_launch.cuh"

namespace sparseloom::kernels::cuda {
namespace wgmma_dds {
namespace {

int split(const MatmulArgs& args, TileSize size) noexcept {
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
  if (!possible(operands_of<Forward, Split>(forward)))
    return kCannotTake;  // before anything is launched for it
  const cudaError_t status =
      split_blocks(args.workspace, static_cast<const float*>(args.values), forward.transposed.slot,
                   index.blocks, index.block, static_cast<cudaStream_t>(args.stream));
  return status != cudaSuccess ? status : launch<Forward, Split>(forward, size);
}

}  // namespace
}  // namespace wgmma_dds

int sm90_split_dds(const MatmulArgs& args, bool narrow) noexcept {
  if (args.direction == Direction::dw || args.dtype != DType::f32) return cudaErrorInvalidValue;
  return with_residual_behind(args, [narrow](const MatmulArgs& call) {
    const int status =
        wgmma_dds::split(call, narrow ? wgmma_dds::TileSize::narrow : wgmma_dds::TileSize::wide);
    return status == kCannotTake ? sm80_ffma_dds(call) : status;
  });
}

std::size_t sm90_split_workspace(const Problem& problem) noexcept {
  return split_bytes(problem.blocks, problem.block);
}

}  // namespace sparseloom::kernels::cuda
