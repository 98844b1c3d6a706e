// Shared by the rows of sm80_ffma for f32 and for f8e4m3.
#pragma once

#include "kernels/shared/cost/cost_terms.h"

namespace sparseloom::kernels::cuda {

// Useful flops per clock and multiprocessor, fitted as those of sm80_mma (../mma/forward/row.cpp).
inline constexpr FlopsBySide kFfma = {60, 130, 165, kFfmaFlops, kFfmaFlops};

}  // namespace sparseloom::kernels::cuda
