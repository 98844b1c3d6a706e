// Constants and parameters of sm90_decode_lines (kernel.cuh).
#pragma once

#include "kernels/bsr_linear/sm90/decode/config.cuh"
#include "kernels/bsr_linear/sm90/decode_rows/tiles.h"
#include "kernels/bsr_linear/sm90/decode_x_in_shared/config.cuh"

namespace sparseloom::kernels::cuda::decode90::rows {

/// Where the values and columns of a strip would lie if all block rows were alike. The kernel prefetches that
/// into L2 before it may read the index.
struct Guess {
  std::uint64_t row_blocks_32 = 0;  // blocks of a block row, with 32 fractional bits
  int warps = 0;                    // this many of a strip's warps prefetch values,
  int units = 0;                    // each the strip's units of this many blocks
};

/// For blocks of 32 and more on both sides: W goes through a ring for each warp, X to registers.
template <class Mma, bool kWide, int kTokenTiles>
struct Config : decode90::Config<Mma, kWide, kTokenTiles> {
  using Base = decode90::Config<Mma, kWide, kTokenTiles>;
  static constexpr int kRows = kStrip;
  // Fewer bytes are on their way than in decode/kernel.cuh. With twice as many, tokens waited behind W in L2,
  // which was measured slower at low density.
  static constexpr int kRingBytes = kWide || kTokenTiles == 8 ? 8192 : 4096;
  static constexpr int kStages = kRingBytes / Base::kStageBytes;
  // How many steps ahead X is loaded. 12 warps with four steps were measured faster than 16 with two.
  static constexpr int kAhead = kTokenTiles <= 4 ? 4 : 2;
  static constexpr int kWarps = warps_of(false, kTokenTiles);
  static constexpr int kWarpBytes = kRingBytes;  // of shared memory, without its barriers

  static_assert(kAhead % Base::kStageSteps == 0, "X is asked for by whole stages");
  static_assert(Base::kSlotBytes <= kRingBytes, "a warp's partial sums take the place of its ring");
  static __device__ __forceinline__ int slot_four(int token, int four) {
    return decode90::slot_four(token, four);
  }
};

/// For blocks of 16 x 16: W and X go to registers.
template <class Mma_, int kTokenTiles_>
struct NarrowConfig {
  using Mma = Mma_;
  static constexpr int kTokenTiles = kTokenTiles_;  // tiles of 8 tokens
  static constexpr int kRows = x_in_shared::kSide, kBlockBytes = x_in_shared::kBlockBytes;
  static constexpr int kAhead = 6;  // blocks that a warp loads ahead
  static constexpr int kWarps = warps_of(true, kTokenTiles);
  static constexpr int kWarpBytes = 8 * kTokenTiles * kRows * 4;  // its partial sums
  static constexpr int kStages = 0;
  static __device__ __forceinline__ int slot_four(int token, int four) {
    return x_in_shared::slot_four(token, four);
  }
};

}  // namespace sparseloom::kernels::cuda::decode90::rows
