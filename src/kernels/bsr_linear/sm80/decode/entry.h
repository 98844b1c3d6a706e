// Launch functions of the decode kernels by arithmetic, one file each so that they compile in parallel.
#pragma once

#include "kernels/args.h"

namespace sparseloom::kernels::cuda::decode {

int launch_bf16(const MatmulArgs& args) noexcept;
int launch_f16(const MatmulArgs& args) noexcept;
int launch_tf32(const MatmulArgs& args) noexcept;
int launch_ffma(const MatmulArgs& args) noexcept;

namespace staged {

/// For forward, blocks of 8 and 16, and values aligned to 16 bytes.
int launch_bf16(const MatmulArgs& args) noexcept;
int launch_f16(const MatmulArgs& args) noexcept;

}  // namespace staged

}  // namespace sparseloom::kernels::cuda::decode
