// The entries of split_bf16x3. cuda/rows.h has the contract of entries.
#pragma once

#include "kernels/args.h"

namespace sparseloom::kernels::cuda {

/// Forward and dX of f32 on Hopper's tensor cores without rounding the operands (bf16x3): each operand is
/// split into three bf16, of whose products six are added (kernel.cuh). Takes block sides 32, 64, 128 and any
/// m >= 1, aligned operands and no residual. The workspace holds the bf16 parts of the values.
int sm90_split_forward(const MatmulArgs& args, const Schedule& schedule) noexcept;

/// dW of f32 by bf16x3. Takes any alignment and m >= 1. The workspace holds the bf16 parts of both operands,
/// 1.5 times their size, and partial sums.
int sm90_split_dw(const MatmulArgs& args, const Schedule& schedule) noexcept;

}  // namespace sparseloom::kernels::cuda
