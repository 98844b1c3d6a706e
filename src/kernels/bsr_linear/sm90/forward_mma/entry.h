// Declares the instances of kernel.cuh. Each has a translation unit of its own, so that they compile in
// parallel. launch.h states their contract.
#pragma once

#include "kernels/args.h"
#include "kernels/bsr_linear/sm90/operands/cannot_take.h"

namespace sparseloom::kernels::cuda::mma_dds {

inline constexpr int kSide = 16;  // side of a block
inline constexpr int kTileTokens = 64, kTileBlockRows = 32, kTileOutputs = kTileBlockRows * kSide;
inline constexpr int kKTile = 64;  // positions of the reduction: 128 bytes of a token

int forward_bf16(const MatmulArgs& args) noexcept;
int forward_f16(const MatmulArgs& args) noexcept;
int dx_bf16(const MatmulArgs& args) noexcept;
int dx_f16(const MatmulArgs& args) noexcept;

}  // namespace sparseloom::kernels::cuda::mma_dds
