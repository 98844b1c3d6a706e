// The entries of mma/forward and mma/dw, and the instances of forward/kernel.cuh, one per translation unit so
// that they compile in parallel. cuda/rows.h has the contract of entries.
#pragma once

#include "kernels/args.h"

namespace sparseloom::kernels::cuda {

/// Forward and dX on tensor cores: bf16, f16, and f32 with args.tf32. Supports any m >= 1, block and
/// alignment, with a schedule of schedule.h.
int sm80_mma_forward(const MatmulArgs& args, const Schedule& schedule) noexcept;

namespace mma::forward {

int forward_bf16(const MatmulArgs& args, const Schedule& schedule) noexcept;
int forward_f16(const MatmulArgs& args, const Schedule& schedule) noexcept;
int forward_tf32(const MatmulArgs& args, const Schedule& schedule) noexcept;
int dx_bf16(const MatmulArgs& args, const Schedule& schedule) noexcept;
int dx_f16(const MatmulArgs& args, const Schedule& schedule) noexcept;
int dx_tf32(const MatmulArgs& args, const Schedule& schedule) noexcept;

}  // namespace mma::forward

/// dW on tensor cores: bf16, f16, and f32 with args.tf32. The workspace holds partial sums if the schedule
/// cuts the tokens (dw/row_parts.h).
int sm80_mma_dw(const MatmulArgs& args, const Schedule& schedule) noexcept;

}  // namespace sparseloom::kernels::cuda
