// sm90_mma_dds and sm90_mma_merged: dtype and direction to the instance of mma_dds.cuh.
#include <cuda_runtime.h>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/sm90/hand_over.h"
#include "kernels/cuda/sm90/merge_blocks.h"
#include "kernels/cuda/sm90/mma_dds.h"
#include "kernels/cuda/sm90/mma_dds_operands.h"

namespace sparseloom::kernels::cuda {
namespace {

int launch(const MatmulArgs& args) noexcept {
  const bool dx = args.direction == Direction::dx;
  if (args.dtype == DType::bf16) return dx ? mma_dds::dx_bf16(args) : mma_dds::forward_bf16(args);
  return dx ? mma_dds::dx_f16(args) : mma_dds::forward_f16(args);
}

bool takes(const MatmulArgs& args) { return args.direction != Direction::dw && size_of(args.dtype) == 2; }

}  // namespace

int sm90_mma_dds(const MatmulArgs& args) noexcept {
  if (!takes(args)) return cudaErrorInvalidValue;
  const int status = launch(args);
  return status == mma_dds::kCannotMap ? hand_over(args) : status;
}

int sm90_mma_merged(const MatmulArgs& args) noexcept {
  if (!takes(args)) return cudaErrorInvalidValue;
  const Merging merging(args.direction, args.index.rows, args.index.cols, args.index.block, Merging::kMmaLeast);
  if (args.m == 0 || merging.lines == 0) return cudaSuccess;
  // What cannot be addressed is nearly always found out before the merging.
  const MatmulArgs product = merged(args, merging);
  if (reinterpret_cast<std::uintptr_t>(args.values) % 16 != 0 || args.index.blocks == 0 || !mma_dds::Operands(product).possible())
    return hand_over(args);
  if (const int status = merge_blocks(args, merging); status != cudaSuccess) return status;
  const int status = launch(product);
  return status == mma_dds::kCannotMap ? hand_over(args) : status;
}

std::size_t sm90_mma_merged_workspace(const Problem& p) noexcept {
  return Merging(p.direction, p.rows, p.cols, p.block, Merging::kMmaLeast).workspace_bytes();
}

}  // namespace sparseloom::kernels::cuda
