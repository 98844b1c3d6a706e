// The instances of wgmma_sdd.cuh, one dtype per translation unit, so that two cores compile them side by side. Contract: launch.h.
#pragma once

#include "kernels/args.h"

namespace sparseloom::kernels::cuda::wgmma_sdd {

/// What TMA cannot address: the caller falls back.
constexpr int kCannotMap = -1;

int dw_bf16(const MatmulArgs& args) noexcept;
int dw_f16(const MatmulArgs& args) noexcept;

}  // namespace sparseloom::kernels::cuda::wgmma_sdd
