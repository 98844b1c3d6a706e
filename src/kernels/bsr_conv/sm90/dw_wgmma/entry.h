// The entry of bsr_conv's dw_wgmma, and the instances of kernel.cuh. bsr_linear/cuda/rows.h has the contract
// of entries.
#pragma once

#include "kernels/args.h"
#include "kernels/bsr_conv/walk.h"

namespace sparseloom::kernels::cuda {

/// dW of bf16 and f16 on Hopper, for square blocks of 32, 64 and 128, at least one block and one pixel,
/// aligned operands, and what wgmma_conv_possible(shape, false) says. Operands as sm80_conv_dw has them.
/// schedule and workspace: those of bsr_linear's dw_wgmma for the product with a block for each block and
/// tap.
int sm90_wgmma_conv_dw(const MatmulArgs& args, const conv::Shape& shape, const Schedule& schedule) noexcept;

namespace wgmma_conv_dw {

int conv_wgmma_dw_bf16(const MatmulArgs& args, const conv::Shape& shape, int most_blocks) noexcept;
int conv_wgmma_dw_f16(const MatmulArgs& args, const conv::Shape& shape, int most_blocks) noexcept;

}  // namespace wgmma_conv_dw

}  // namespace sparseloom::kernels::cuda
