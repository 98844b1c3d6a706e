// Numbers and parameters of sm90_decode_lines (decode_line.cuh).
#pragma once

#include "kernels/cuda/sm90/decode_config.cuh"
#include "kernels/cuda/sm90/decode_resident_config.cuh"

namespace sparseloom::kernels::cuda::decode90::line {

/// Where the values and columns of a block row would lie if all were alike: what L2 is asked for before the
/// index may be read.
struct Guess {
  std::uint64_t row_blocks_32 = 0;  // blocks of a block row, 32 fractional bits
  int warps = 0;                    // so many of a line's warps ask for values,
  int units = 0;                    // each for what so many blocks hold of the line
};

/// Blocks of 32 and more on both sides: W through a ring of each warp, X to registers.
template <class Mma, bool kWide, int kTokenTiles>
struct Config : decode90::Config<Mma, kWide, kTokenTiles> {
  using Base = decode90::Config<Mma, kWide, kTokenTiles>;
  static constexpr int kRows = kLine;
  // Fewer bytes on their way than decode.cuh has: with twice as many, tokens waited behind W in L2 (8.4 us
  // for 7.7 at density .05 of 32 x 12288 x 12288).
  static constexpr int kRingBytes = kWide || kTokenTiles == 8 ? 8192 : 4096;
  static constexpr int kStages = kRingBytes / Base::kStageBytes;
  // Steps that X is asked for ahead of its use. 12 warps with four of them are 2 to 4 % faster than 16 with
  // two.
  static constexpr int kAhead = kTokenTiles <= 4 ? 4 : 2;
  // Registers: 128 per lane for 16 warps, 168 for 12, 255 for 8.
  static constexpr int kWarps = kTokenTiles <= 2 ? 16 : kTokenTiles == 4 ? 12 : 8;
  static constexpr int kWarpBytes = kRingBytes;  // of shared memory, beside its barriers

  static_assert(kAhead % Base::kStageSteps == 0, "X is asked for by whole stages");
  static_assert(Base::kSlotBytes <= kRingBytes, "a warp's partial sums take the place of its ring");
  static __device__ __forceinline__ int slot_four(int token, int four) {
    return decode90::slot_four(token, four);
  }
};

/// Blocks of 16 x 16: W and X to registers.
template <class Mma_, int kTokenTiles_>
struct NarrowConfig {
  using Mma = Mma_;
  static constexpr int kTokenTiles = kTokenTiles_;  // 8 tokens each
  static constexpr int kRows = resident::kSide, kBlockBytes = resident::kBlockBytes;
  static constexpr int kAhead = 6;  // blocks on their way to a warp
  static constexpr int kWarps = kTokenTiles <= 2 ? 16 : 12;
  static constexpr int kWarpBytes = 8 * kTokenTiles * kRows * 4;  // its partial sums
  static constexpr int kStages = 0;
  static __device__ __forceinline__ int slot_four(int token, int four) {
    return resident::slot_four(token, four);
  }
};

}  // namespace sparseloom::kernels::cuda::decode90::line
