// The entry of bsr_conv's dw_mma, and the instances of kernel.cuh. bsr_linear/cuda/rows.h has the contract of
// entries.
#pragma once

#include "kernels/args.h"
#include "kernels/bsr_conv/walk.h"

namespace sparseloom::kernels::cuda {

/// dW on tensor cores: bf16, f16, and f32 with args.tf32. args is the product of W's channels, whose tokens
/// are pixels: a = dY [args.m, rows], b = X [pixels, cols], and out is [blocks][taps][bm, bn]. The workspace
/// holds partial sums if the schedule cuts the pixels.
int sm80_conv_dw(const MatmulArgs& args, const conv::Shape& shape, const Schedule& schedule) noexcept;

}  // namespace sparseloom::kernels::cuda
