// The entry of dw_mma. cuda/rows.h has the contract of entries.
#pragma once

#include <cstddef>

#include "kernels/args.h"

namespace sparseloom::kernels::cuda {

/// dW on tensor cores: bf16, f16, and f32 with args.tf32. The workspace holds partial sums if the tokens are
/// cut.
int sm80_mma_sdd(const MatmulArgs& args) noexcept;
std::size_t sm80_mma_sdd_workspace(const Problem& problem, int multiprocessors) noexcept;

}  // namespace sparseloom::kernels::cuda
