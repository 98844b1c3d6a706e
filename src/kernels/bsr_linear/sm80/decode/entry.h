// The entry of decode, and the instances of kernel.cuh by arithmetic, one translation unit each so that they
// compile in parallel. cuda/rows.h has the contract of entries.
#pragma once

#include "kernels/args.h"

namespace sparseloom::kernels::cuda {

/// Forward and dX of small batches, limited by the bytes of the stored blocks: m <= kDecodeTokens; bf16, f16,
/// and f32 with or without args.tf32. schedule: of schedule.h.
inline constexpr int kDecodeTokens = 64;
int sm80_decode(const MatmulArgs& args, const Schedule& schedule) noexcept;

namespace decode {

int launch_bf16(const MatmulArgs& args, const Schedule& schedule) noexcept;
int launch_f16(const MatmulArgs& args, const Schedule& schedule) noexcept;
int launch_tf32(const MatmulArgs& args, const Schedule& schedule) noexcept;
int launch_ffma(const MatmulArgs& args, const Schedule& schedule) noexcept;

}  // namespace decode

}  // namespace sparseloom::kernels::cuda
