// The instances of decode_x_in_shared, one translation unit for each dtype so that they compile in parallel.
// ../decode/entry.h declares the entry.
#pragma once

#include "kernels/args.h"

namespace sparseloom::kernels::cuda::decode90::x_in_shared {

/// Blocks of 16 x 16.
int launch_bf16(const MatmulArgs& args, const Schedule& schedule) noexcept;
int launch_f16(const MatmulArgs& args, const Schedule& schedule) noexcept;

}  // namespace sparseloom::kernels::cuda::decode90::x_in_shared
