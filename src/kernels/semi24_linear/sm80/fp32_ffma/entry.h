// The entries of fp32_ffma.
#pragma once

#include <cstdint>

#include "sparseloom/matmul_args.h"
#include "sparseloom/semi24.h"

namespace sparseloom::kernels::cuda {

namespace semi24_ffma {

/// Tokens that a thread holds: the instances. More tokens take further thread blocks.
inline constexpr int kTokens[] = {1, 4, 8};
inline constexpr int kTokensCount = 3, kMostRanks = 8, kMostTokens = 64;
/// Outputs of a thread block of forward; in features of one of dX, and the rows of W of a step of its warps.
inline constexpr int kForwardRows = 4, kDxInputs = 128, kDxRows = 32;

}  // namespace semi24_ffma

/// Forward and dX of f32, with kTokens[instance] tokens to a thread. cols is a multiple of 8; x and values
/// are aligned to 16 bytes, and so are the rows of x.
int sm80_semi24_ffma_forward(const MatmulArgs& args, const Semi24View& w, int instance) noexcept;

/// dX, whose rows of W a cluster of `ranks` thread blocks shares: 1, and on compute capability 9.0 2, 4 or 8
/// too. rows is a multiple of 4; dY and out are aligned to 16 bytes, and so are their rows.
int sm80_semi24_ffma_dx(const MatmulArgs& args, const Semi24View& w, int instance, int ranks) noexcept;

}  // namespace sparseloom::kernels::cuda
