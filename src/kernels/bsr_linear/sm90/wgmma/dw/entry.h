// The entry of wgmma/dw and wgmma/dw_regions. cuda/rows.h has the contract of entries.
#pragma once

#include "kernels/args.h"

namespace sparseloom::kernels::cuda {

/// dW by Hopper's wgmma and TMA (compute capability 9.0 only): bf16, f16 and f32 with args.tf32 in block
/// sides 32, 64, 128 in any pairing; with bf16 and f16 also blocks of 16 on either or both sides, paired with
/// 16 and 32, where mma.sync multiplies block rows of 16. Takes some blocks, m >= 1 and, of bf16 and f16,
/// aligned operands. The workspace of either kernel holds partial sums if the tokens are cut, and for f32
/// both operands, transposed. The rows choose schedule and workspace by row_parts.h.
int sm90_wgmma_dw(const MatmulArgs& args, const Schedule& schedule) noexcept;

}  // namespace sparseloom::kernels::cuda
