// Launches of the instances of sm90_decode and sm90_decode_lines. Each dtype has a file of its own, so that
// they compile in parallel.
#pragma once

#include "kernels/args.h"
#include "kernels/bsr_linear/sm90/operands/cannot_take.h"

namespace sparseloom::kernels::cuda::decode90 {

/// sm90_decode with blocks of 32, 64 and 128 on either side.
int launch_bf16(const MatmulArgs& args) noexcept;
int launch_f16(const MatmulArgs& args) noexcept;

namespace rows {

/// sm90_decode_lines with blocks of 32, 64 and 128 on either side, and of 16 x 16.
int launch_bf16(const MatmulArgs& args) noexcept;
int launch_f16(const MatmulArgs& args) noexcept;

}  // namespace rows

namespace x_in_shared {

/// sm90_decode with blocks of 16 x 16.
int launch_bf16(const MatmulArgs& args) noexcept;
int launch_f16(const MatmulArgs& args) noexcept;

}  // namespace x_in_shared

}  // namespace sparseloom::kernels::cuda::decode90
