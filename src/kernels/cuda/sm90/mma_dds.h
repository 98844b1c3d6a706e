// The instances of mma_dds.cuh, one per translation unit, so that two cores compile them side by side.
// Contract: launch.h.
#pragma once

#include "kernels/args.h"
#include "kernels/cuda/sm90/cannot_take.h"

namespace sparseloom::kernels::cuda::mma_dds {

inline constexpr int kSide = 16;  // of a block
inline constexpr int kTileTokens = 64, kTileLines = 32, kTileOutputs = kTileLines * kSide;
inline constexpr int kSlab = 64;  // of the reduction, 128 bytes of a token

int forward_bf16(const MatmulArgs& args) noexcept;
int forward_f16(const MatmulArgs& args) noexcept;
int dx_bf16(const MatmulArgs& args) noexcept;
int dx_f16(const MatmulArgs& args) noexcept;

}  // namespace sparseloom::kernels::cuda::mma_dds
