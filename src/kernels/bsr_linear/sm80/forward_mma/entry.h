// Instances of forward_mma/kernel.cuh, one per translation unit so that they compile in parallel. Contract:
// launch.h.
#pragma once

#include "kernels/args.h"

namespace sparseloom::kernels::cuda::dds {

int forward_bf16(const MatmulArgs& args) noexcept;
int forward_f16(const MatmulArgs& args) noexcept;
int forward_tf32(const MatmulArgs& args) noexcept;
int dx_bf16(const MatmulArgs& args) noexcept;
int dx_f16(const MatmulArgs& args) noexcept;
int dx_tf32(const MatmulArgs& args) noexcept;

}  // namespace sparseloom::kernels::cuda::dds
