// The instances of sm90_decode: one file each, so that they compile side by side.
#pragma once

#include "kernels/args.h"
#include "kernels/cuda/sm90/cannot_take.h"

namespace sparseloom::kernels::cuda::decode90 {

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
