// The instances of wgmma_dds.cuh, one per translation unit, so that two cores compile them side by side. Contract: launch.h.
#pragma once

#include "kernels/args.h"

namespace sparseloom::kernels::cuda::wgmma_dds {

/// What TMA cannot address: the caller falls back.
constexpr int kCannotMap = -1;

int forward_bf16(const MatmulArgs& args) noexcept;
int forward_f16(const MatmulArgs& args) noexcept;
int dx_bf16(const MatmulArgs& args) noexcept;
int dx_f16(const MatmulArgs& args) noexcept;

}  // namespace sparseloom::kernels::cuda::wgmma_dds
