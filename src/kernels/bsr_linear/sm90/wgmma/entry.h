// The entries of wgmma/dw with wgmma/dw_regions, and of wgmma/split_bf16x3; forward/entry.h has forward's.
// cuda/rows.h has the contract of entries.
#pragma once

#include "kernels/args.h"

namespace sparseloom::kernels::cuda {

/// dW by Hopper's wgmma and TMA (compute capability 9.0 only): bf16, f16 and f32 with args.tf32 in block
/// sides 32, 64, 128 in any pairing; with bf16 and f16 also blocks of 16 on either or both sides, paired with
/// 16 and 32, where mma.sync multiplies block rows of 16. Needs a stored block, m >= 1 and, for bf16 and f16,
/// aligned operands. The workspace of either kernel holds partial sums if the tokens are cut, and for f32
/// both operands, transposed. The rows choose schedule and workspace by dw/row_parts.h.
int sm90_wgmma_dw(const MatmulArgs& args, const Schedule& schedule) noexcept;

/// Forward and dX of f32 on Hopper's tensor cores without rounding the operands (bf16x3): each operand is
/// split into three bf16, and six of their products are added (split_bf16x3/kernel.cuh). Supports block sides
/// 32, 64, 128 and any m >= 1, aligned operands and no residual. The workspace holds the bf16 planes of the
/// values.
int sm90_split_forward(const MatmulArgs& args, const Schedule& schedule) noexcept;

/// dW of f32 by bf16x3. Supports any alignment and m >= 1. The workspace holds the bf16 planes of both
/// operands, 1.5 times their size, and partial sums.
int sm90_split_dw(const MatmulArgs& args, const Schedule& schedule) noexcept;

}  // namespace sparseloom::kernels::cuda
