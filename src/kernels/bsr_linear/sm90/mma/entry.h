// The entries of sm90_mma, its tile, and the instances of kernel.cuh, each with a translation unit of its
// own so that they compile in parallel. cuda/rows.h has the contract of entries.
#pragma once

#include "kernels/args.h"

namespace sparseloom::kernels::cuda {

/// Forward and dX of bf16 and f16 in blocks of 16 x 16 on Hopper (compute capability 9.0 only), by mma.sync
/// for 512 outputs at a time, fed by TMA. Supports any m >= 1 and at most kMmaAlong block columns (dX: block
/// rows), for which a table takes 24 KB of shared memory. Operands are aligned.
inline constexpr int kMmaAlong = 1024;
int sm90_mma_forward(const MatmulArgs& args, const Schedule& schedule) noexcept;

/// The product of blocks of 8 on one side or both and 16 on the other. It first merges them into units of 16
/// x 16, padded with zeros (wgmma/merged/merge_blocks.h). The workspace holds the units and may be as large
/// as the dense W.
int sm90_mma_merged(const MatmulArgs& args, const Schedule& schedule) noexcept;

namespace sm90_mma {

inline constexpr int kSide = 16;  // side of a block
inline constexpr int kTileTokens = 64, kTileBlockRows = 32, kTileOutputs = kTileBlockRows * kSide;
inline constexpr int kKTile = 64;  // positions of the reduction: 128 bytes of a token

int forward_bf16(const MatmulArgs& args, const Schedule& schedule) noexcept;
int forward_f16(const MatmulArgs& args, const Schedule& schedule) noexcept;
int dx_bf16(const MatmulArgs& args, const Schedule& schedule) noexcept;
int dx_f16(const MatmulArgs& args, const Schedule& schedule) noexcept;

}  // namespace sm90_mma

}  // namespace sparseloom::kernels::cuda
