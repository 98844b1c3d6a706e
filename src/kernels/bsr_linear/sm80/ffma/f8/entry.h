// The entry of ffma/f8. cuda/rows.h has the contract of entries.
#pragma once

#include "kernels/args.h"

namespace sparseloom::kernels::cuda {

/// Forward of f8e4m3 by FFMA. Takes any m >= 1, block and alignment.
int sm80_ffma_f8(const MatmulArgs& args) noexcept;

}  // namespace sparseloom::kernels::cuda
