// The entries of ffma and ffma/f8. cuda/rows.h has the contract of entries.
#pragma once

#include "kernels/args.h"

namespace sparseloom::kernels::cuda {

/// Forward and dX, and dW, in fp32 by FFMA, which does not round the operands.
int sm80_ffma_forward(const MatmulArgs& args, const Schedule& schedule) noexcept;
int sm80_ffma_dw(const MatmulArgs& args, const Schedule& schedule) noexcept;

/// Forward of f8e4m3 by FFMA. Supports any m >= 1, block and alignment.
int sm80_ffma_f8(const MatmulArgs& args) noexcept;

}  // namespace sparseloom::kernels::cuda
