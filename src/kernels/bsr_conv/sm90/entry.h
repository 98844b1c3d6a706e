// The entries of bsr_conv's forward_wgmma and dw_wgmma, and the instances of their kernels, one per
// translation unit so that they compile in parallel. bsr_linear/cuda/rows.h has the contract of entries.
#pragma once

#include "kernels/args.h"
#include "kernels/bsr_conv/walk.h"

namespace sparseloom::kernels::cuda {

/// Whether im2col TMA supports the gathered tensor of forward or dX: strides of 1 in dX and of at most 8 in
/// forward; with three axes of extents above 1, taps and padding within 16 pixels, otherwise within 128.
bool wgmma_conv_possible(const conv::Shape& shape, bool dx) noexcept;

/// Forward and dX of bf16 and f16 on Hopper, for square blocks of 32, 64 and 128, at least one block, aligned
/// operands, and shapes that wgmma_conv_possible accepts. Operands as for sm80_conv_forward. dX adds the
/// bias, but supports no activation; there is no residual. schedule: that of bsr_linear's sm90_wgmma.
int sm90_wgmma_conv(const MatmulArgs& args, const conv::Shape& shape, const Schedule& schedule) noexcept;

namespace wgmma_conv {

int conv_wgmma_forward_bf16(const MatmulArgs& args, const conv::Shape& shape,
                            const Schedule& schedule) noexcept;
int conv_wgmma_forward_f16(const MatmulArgs& args, const conv::Shape& shape,
                           const Schedule& schedule) noexcept;
int conv_wgmma_dx_bf16(const MatmulArgs& args, const conv::Shape& shape, const Schedule& schedule) noexcept;
int conv_wgmma_dx_f16(const MatmulArgs& args, const conv::Shape& shape, const Schedule& schedule) noexcept;

}  // namespace wgmma_conv

/// dW of bf16 and f16 on Hopper, for square blocks of 32, 64 and 128, at least one block and one pixel,
/// aligned operands, and shapes that wgmma_conv_possible(shape, false) accepts. Operands as for sm80_conv_dw.
/// schedule and workspace: those of bsr_linear's dw_wgmma for the product with one block per block and tap.
int sm90_wgmma_conv_dw(const MatmulArgs& args, const conv::Shape& shape, const Schedule& schedule) noexcept;

namespace wgmma_conv_dw {

int conv_wgmma_dw_bf16(const MatmulArgs& args, const conv::Shape& shape, int most_blocks) noexcept;
int conv_wgmma_dw_f16(const MatmulArgs& args, const conv::Shape& shape, int most_blocks) noexcept;

}  // namespace wgmma_conv_dw

}  // namespace sparseloom::kernels::cuda
