// Constants and parameters of rows/kernel.cuh.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/bsr_linear/sm90/decode_lines/entry.h"
#include "kernels/bsr_linear/sm90/decode_lines/params.cuh"
#include "kernels/bsr_linear/sm90/decode_lines/store.cuh"

namespace sparseloom::kernels::cuda::decode_lines::rows {

/// The position of a strip's values and columns if all block rows were alike. The kernel prefetches it into
/// L2 before it may read the index.
struct Guess {
  std::uint64_t row_blocks_32 = 0;  // blocks per block row, with 32 fractional bits
  int warps = 0;                    // warps of a strip that prefetch values,
  int units = 0;                    // and units of this many blocks that each prefetches
};

/// For blocks of 32 and more on both sides: W goes through a ring per warp, X to registers. kTokenTiles_:
/// tiles of 8 tokens, the N of an mma. kWide_: blocks have 64 or 128 columns; otherwise 32.
template <class Mma_, bool kWide_, int kTokenTiles_>
struct Config {
  using Mma = Mma_;
  static constexpr bool kWide = kWide_;
  static constexpr int kTokenTiles = kTokenTiles_;
  static constexpr int kRows = kStrip;
  // A warp multiplies 32 rows x 32 k per step. A stage holds one copy: 2 KB of a block of 32 columns, which
  // are contiguous, or 32 rows of 128 bytes. The latter are swizzled, since rows 128 bytes apart would share
  // their banks.
  static constexpr int kStageColumns = kWide ? 64 : 32;
  static constexpr int kStageSteps = kStageColumns / 32;
  static constexpr int kStageBytes = kStrip * kStageColumns * 2;
  // With twice as many bytes in flight, tokens waited behind W in L2, which measured slower at low density.
  static constexpr int kRingBytes = kWide || kTokenTiles == 8 ? 8192 : 4096;
  static constexpr int kStages = kRingBytes / kStageBytes;
  // How many steps ahead X is loaded. 12 warps with four steps measured faster than 16 with two.
  static constexpr int kAhead = kTokenTiles <= 4 ? 4 : 2;
  static constexpr int kWarps = warps_of(false, kTokenTiles);
  static constexpr int kWarpBytes = kRingBytes;  // shared memory without its barriers

  static_assert(kAhead % kStageSteps == 0, "X is loaded in whole stages");
  static_assert(kTokenTiles * 8 * kStrip * 4 <= kRingBytes,
                "a warp's partial sums, [token][output], must fit in its ring");

  /// The index, in float4, of outputs 4 four .. 4 four + 3 of a token in a slot. The XOR puts the lanes of
  /// one mma result into different banks.
  static __host__ __device__ constexpr int slot_four(int token, int four) {
    return token * 8 + (four ^ (2 * (token >> 1 & 3)));
  }
};

/// The strip's row that is row `row` of mma `tile`. With wide blocks, rows g and g + 1 of the mma are four
/// rows apart in the strip. A load reads swizzled 16-byte chunks of both at a time, and the chunks of one row
/// then use the banks that those of the other leave free.
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
