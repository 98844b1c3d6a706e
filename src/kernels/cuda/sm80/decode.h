// The decode kernels by arithmetic and direction: one file each, so that they compile side by side.
#pragma once

#include "kernels/args.h"

namespace sparseloom::kernels::cuda::decode {

/// Tensor cores. values aligned to 16 bytes.
int launch_forward_bf16(const MatmulArgs& args) noexcept;
int launch_forward_f16(const MatmulArgs& args) noexcept;
int launch_forward_tf32(const MatmulArgs& args) noexcept;
int launch_dx_bf16(const MatmulArgs& args) noexcept;
int launch_dx_f16(const MatmulArgs& args) noexcept;
int launch_dx_tf32(const MatmulArgs& args) noexcept;

/// fp32 without rounding, both directions.
int launch_ffma(const MatmulArgs& args) noexcept;

}  // namespace sparseloom::kernels::cuda::decode
