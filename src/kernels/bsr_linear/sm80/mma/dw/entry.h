// The entry of mma/dw. cuda/rows.h has the contract of entries.
#pragma once

#include "kernels/args.h"

namespace sparseloom::kernels::cuda {

/// dW on tensor cores: bf16, f16, and f32 with args.tf32. The workspace holds partial sums if the schedule
/// cuts the tokens (row_parts.h).
int sm80_mma_dw(const MatmulArgs& args, const Schedule& schedule) noexcept;

}  // namespace sparseloom::kernels::cuda
