// Forward and dx of blocks that are first merged into units.
#pragma once

#include <cstdint>

#include "kernels/args.h"
#include "kernels/bsr_linear/sm90/merged/merge_blocks.h"
#include "kernels/bsr_linear/sm90/operands/cannot_take.h"
#include "kernels/bsr_linear/sm90/operands/fallback.h"

namespace sparseloom::kernels::cuda {

/// Merges args' blocks into units with sides of at least `least`, and launches the product over them.
/// takes(product) tells whether TMA can address it. launch(product) returns a cudaError_t or kCannotTake,
/// which takes() has nearly always found out before the merging.
template <class Takes, class Launch>
int merged_product(const MatmulArgs& args, std::int32_t least, const Takes& takes,
                   const Launch& launch) noexcept {
  const Merging merging(args.direction, args.index.rows, args.index.cols, args.index.block, least);
  if (args.m == 0 || merging.block_rows == 0) return 0;
  const MatmulArgs product = merged(args, merging);
  const bool aligned = reinterpret_cast<std::uintptr_t>(args.values) % 16 == 0;
  if (!aligned || args.index.blocks == 0 || !takes(product)) return fallback(args);
  if (const int status = merge_blocks(args, merging); status != 0) return status;
  const int status = launch(product);
  return status == kCannotTake ? fallback(args) : status;
}

}  // namespace sparseloom::kernels::cuda
