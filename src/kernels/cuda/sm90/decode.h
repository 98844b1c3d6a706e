// The instances of sm90_decode: one file each, so that they compile side by side.
#pragma once

#include "kernels/args.h"

namespace sparseloom::kernels::cuda::decode90 {

/// What launch answers where the copy engine cannot address an operand or a count does not fit: an sm_80 kernel takes the call.
inline constexpr int kCannotTake = -1;

/// Blocks of 32, 64 and 128 on either side.
int launch_bf16(const MatmulArgs& args) noexcept;
int launch_f16(const MatmulArgs& args) noexcept;

namespace line {

/// Blocks of 32, 64 and 128 on either side, and of 16 x 16.
int launch_bf16(const MatmulArgs& args) noexcept;
int launch_f16(const MatmulArgs& args) noexcept;

}  // namespace line

namespace resident {

/// Blocks of 16 x 16.
int launch_bf16(const MatmulArgs& args) noexcept;
int launch_f16(const MatmulArgs& args) noexcept;

}  // namespace resident

}  // namespace sparseloom::kernels::cuda::decode90
