// The entry of bsr_conv's forward_mma, and the instances of kernel.cuh, one per translation unit so that they
// compile in parallel. bsr_linear/cuda/rows.h has the contract of entries.
#pragma once

#include "kernels/args.h"
#include "kernels/bsr_conv/walk.h"

namespace sparseloom::kernels::cuda {

/// Forward and dX on tensor cores: bf16, f16, and f32 with args.tf32. args is the product of W's channels,
/// whose tokens are pixels: a and out are [pixels, channels], and values are [blocks][taps][bm, bn]. Takes
/// any number of pixels below 2^31, any stride, padding, dilation, block and alignment. In dx, too, it adds
/// the bias, applies the activation and adds the residual. schedule: tile_n is the block's side along the
/// outputs.
int sm80_conv_forward(const MatmulArgs& args, const conv::Shape& shape, const Schedule& schedule) noexcept;

namespace conv_forward {

int conv_forward_bf16(const MatmulArgs& args, const conv::Shape& shape, const Schedule& schedule) noexcept;
int conv_forward_f16(const MatmulArgs& args, const conv::Shape& shape, const Schedule& schedule) noexcept;
int conv_forward_tf32(const MatmulArgs& args, const conv::Shape& shape, const Schedule& schedule) noexcept;
int conv_dx_bf16(const MatmulArgs& args, const conv::Shape& shape, const Schedule& schedule) noexcept;
int conv_dx_f16(const MatmulArgs& args, const conv::Shape& shape, const Schedule& schedule) noexcept;
int conv_dx_tf32(const MatmulArgs& args, const conv::Shape& shape, const Schedule& schedule) noexcept;

}  // namespace conv_forward

}  // namespace sparseloom::kernels::cuda
