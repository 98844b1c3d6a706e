// Constants and parameters of rows/kernel.cuh.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/bsr_linear/sm90/decode_lines/entry.h"
#include "kernels/bsr_linear/sm90/decode_lines/params.cuh"
#include "kernels/bsr_linear/sm90/decode_lines/store.cuh"

namespace sparseloom::kernels::cuda::decode_lines::rows {

/// Where the values and columns of a strip would lie if all block rows were alike. The kernel prefetches that
/// into L2 before it may read the index.
struct Guess {
  std::uint64_t row_blocks_32 = 0;  // blocks of a block row, with 32 fractional bits
  int warps = 0;                    // this many of a strip's warps prefetch values,
  int units = 0;                    // each the strip's units of this many blocks
};

/// For blocks of 32 and more on both sides: W goes through a ring for each warp, X to registers.
/// kTokenTiles_: tiles of 8 tokens, the N of an mma. kWide_: blocks have 64 or 128 columns; else they have
/// 32.
template <class Mma_, bool kWide_, int kTokenTiles_>
struct Config {
  using Mma = Mma_;
  static constexpr bool kWide = kWide_;
  static constexpr int kTokenTiles = kTokenTiles_;
  static constexpr int kRows = kStrip;
  // A warp multiplies 32 rows x 32 k in a step. A stage is what one copy brings: 2 KB of a block of 32
  // columns, which are contiguous, or 32 rows of 128 bytes. The latter are swizzled, since rows 128 bytes
  // apart would share their banks.
  static constexpr int kStageColumns = kWide ? 64 : 32;
  static constexpr int kStageSteps = kStageColumns / 32;
  static constexpr int kStageBytes = kStrip * kStageColumns * 2;
  // With twice as many bytes on their way, tokens waited behind W in L2, which was measured slower at low
  // density.
  static constexpr int kRingBytes = kWide || kTokenTiles == 8 ? 8192 : 4096;
  static constexpr int kStages = kRingBytes / kStageBytes;
  // How many steps ahead X is loaded. 12 warps with four steps were measured faster than 16 with two.
  static constexpr int kAhead = kTokenTiles <= 4 ? 4 : 2;
  static constexpr int kWarps = warps_of(false, kTokenTiles);
  static constexpr int kWarpBytes = kRingBytes;  // of shared memory, without its barriers

  static_assert(kAhead % kStageSteps == 0, "X is asked for by whole stages");
  static_assert(kTokenTiles * 8 * kStrip * 4 <= kRingBytes,
                "a warp's partial sums, [token][output], take the place of its ring");

  /// Where the sums of outputs 4 four .. 4 four + 3 of a token lie in a slot, counted in float4. The XOR puts
  /// the lanes of one mma result into different banks.
  static __host__ __device__ constexpr int slot_four(int token, int four) {
    return token * 8 + (four ^ (2 * (token >> 1 & 3)));
  }
};

/// The row of its strip that is row `row` of mma `tile`. With wide blocks, rows g and g + 1 of the mma lie
/// four rows apart in the strip. A load reads swizzled 16-byte chunks of both at a time, and this way the
/// chunks of one row fall into the banks that those of the other leave free.
template <class C>
__host__ __device__ constexpr int line_row(int tile, int row) {
  if constexpr (!C::kWide) return 16 * tile + row;
  return 16 * tile + (row & 1) * 4 + (row >> 1 & 3) + (row & 8);
}

/// For blocks of 16 x 16: W and X go to registers.
template <class Mma_, int kTokenTiles_>
struct NarrowConfig {
  using Mma = Mma_;
  static constexpr int kTokenTiles = kTokenTiles_;  // tiles of 8 tokens
  static constexpr int kRows = kSide;
  static constexpr int kAhead = 6;  // blocks that a warp loads ahead
  static constexpr int kWarps = warps_of(true, kTokenTiles);
  static constexpr int kWarpBytes = 8 * kTokenTiles * kRows * 4;  // its partial sums
  static constexpr int kStages = 0;
  static __device__ __forceinline__ int slot_four(int token, int four) {
    return decode_lines::slot_four(token, four);
  }
};

}  // namespace sparseloom::kernels::cuda::decode_lines::rows
