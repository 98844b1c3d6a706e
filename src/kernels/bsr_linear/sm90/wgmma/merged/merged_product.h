// Forward and dx of blocks that are first merged into units.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/args.h"
#include "kernels/bsr_linear/sm90/wgmma/merged/merge_blocks.h"

namespace sparseloom::kernels::cuda {

/// Merges args' blocks into units with sides of at least `least`, and launches the product over them.
/// launch(product) returns a cudaError_t.
template <class Launch>
int merged_product(const MatmulArgs& args, std::int32_t least, const Launch& launch) noexcept {
  const Merging merging(args.direction, args.index.rows, args.index.cols, args.index.block, least);
  if (args.m == 0 || merging.block_rows == 0) return cudaSuccess;
  const bool aligned = reinterpret_cast<std::uintptr_t>(args.values) % 16 == 0;
  if (!aligned || args.index.blocks == 0) return cudaErrorInvalidValue;
  if (const int status = merge_blocks(args, merging); status != cudaSuccess) return status;
  return launch(merged(args, merging));
}

}  // namespace sparseloom::kernels::cuda
