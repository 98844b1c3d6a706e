// The entry of decode, the instances of kernel.cuh by arithmetic, one translation unit each so that they
// compile in parallel, and their tiles as numbers: schedule.cpp chooses one, and config.cuh derives the
// kernel's types from them. cuda/rows.h has the contract of entries.
#pragma once

#include <cstddef>

#include "kernels/args.h"

namespace sparseloom::kernels::cuda {

/// Forward and dX of small batches, limited by the bytes of the stored blocks: m <= kDecodeTokens; bf16, f16,
/// and f32 with or without args.tf32. schedule.h chooses the schedule.
inline constexpr int kDecodeTokens = 64;
int sm80_decode(const MatmulArgs& args, const Schedule& schedule) noexcept;

namespace decode {

int launch_bf16(const MatmulArgs& args, const Schedule& schedule) noexcept;
int launch_f16(const MatmulArgs& args, const Schedule& schedule) noexcept;
int launch_tf32(const MatmulArgs& args, const Schedule& schedule) noexcept;
int launch_ffma(const MatmulArgs& args, const Schedule& schedule) noexcept;

}  // namespace decode

}  // namespace sparseloom::kernels::cuda

namespace sparseloom::kernels::cuda::decode {

// A warp's step takes 64 bytes of k from each row.
inline constexpr int kChunkBytes = 64;
inline constexpr int kMostWarps = 8;  // most warps of a thread block

// strip: the outputs of a thread block, 8, 16 or 32. token_tiles: its tiles of 16 tokens (M of an mma): 1, 2
// or 4.

// In flight per warp: all stages but one. 4.3 TB/s for 1 us is 33 KB of W per multiprocessor; 12 warps with
// strips of 32 have 72 KB in flight (48 KB at 64 tokens, where a fourth stage would cost the third thread
// block per multiprocessor).
constexpr int stages_of(int token_tiles) { return token_tiles == 4 ? 3 : 4; }
// The register limit: 80 per lane for 24 warps, 128 for 16.
constexpr int warps_per_multiprocessor(int strip, int token_tiles) {
  return strip * token_tiles <= 32 ? 24 : 16;
}
/// A warp's ring in shared memory, kStages * sizeof(Stage).
constexpr std::size_t ring_bytes(int strip, int token_tiles) {
  return static_cast<std::size_t>(stages_of(token_tiles) * (strip + 16 * token_tiles) * kChunkBytes);
}

}  // namespace sparseloom::kernels::cuda::decode
