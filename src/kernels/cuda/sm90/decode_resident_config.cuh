// Numbers and shared memory of decode_resident.cuh. Included by it.
#pragma once

#include "kernels/cuda/sm90/decode_config.cuh"

namespace sparseloom::kernels::cuda::decode90::resident {

inline constexpr int kSide = 16;  // of a block: one mma's outputs, and its k
inline constexpr int kBlockBytes = kSide * kSide * 2;
inline constexpr int kBox = 64;  // columns of X in 128 bytes

template <class Mma_, int kTokenTiles_>
struct Config {
  using Mma = Mma_;
  static constexpr int kTokenTiles = kTokenTiles_;  // 8 tokens each
  static constexpr int kTokens = 8 * kTokenTiles;
  static constexpr int kWarps = 16;
  static constexpr int kLines = 4;  // of a warp at a time, 16 registers of sums each at 32 tokens
  static constexpr int kPassLines = kWarps * kLines;
  static constexpr int kStageBlocks = 4;
  static constexpr int kStageBytes = kStageBlocks * kBlockBytes;
  static constexpr int kStages = 3;  // 64 KB of W on their way to a multiprocessor
  static constexpr int kBoxBytes = kTokens * kBox * 2;
  static constexpr int kSlotFours = kTokens * kSide / 4;  // a line's sums, [token][output], in float4
};

/// How the columns are cut: cluster rank r has [r range, (r + 1) range).
struct Cut {
  CUtensorMap x;  // [m, cols]
  int range = 0;  // a multiple of kBox
};

/// Dynamic shared memory, in this order: X, or later the sums of a pass in its place and that of the rings;
/// row pointers last.
template <class C>
struct Layout {
  unsigned rings, masks, barriers, borders, crow, bytes;

  __host__ __device__ constexpr Layout(int range, int block_rows) {
    const unsigned words = static_cast<unsigned>(range / kSide + 31) / 32;
    rings = static_cast<unsigned>(range / kBox) * C::kBoxBytes;
    masks = rings + C::kWarps * C::kStages * C::kStageBytes;
    constexpr unsigned kSums = C::kPassLines * C::kSlotFours * 16;
    if (masks < kSums) masks = kSums;
    barriers = masks + (C::kPassLines * words * 4 + 7) / 8 * 8;
    borders = barriers + 8 * (1 + C::kWarps * C::kStages);
    crow = borders + 8;
    bytes = crow + 4 * static_cast<unsigned>(block_rows + 1);
  }
};

/// Of the eight tokens of a tile, which is column `column` of the mma: so ordered, the eight bytes of X that
/// half a warp loads at a time lie in different banks of the swizzled boxes.
__host__ __device__ constexpr int token_of(int column) { return (column & 3) * 2 + (column >> 2); }

/// Where sums of outputs 4 four .. + 3 of a token lie in a slot, in float4: lanes of one mma result hit
/// different banks.
__host__ __device__ constexpr int slot_four(int token, int four) {
  return token * 4 + (four ^ (token >> 2 & 1) * 2);
}

}  // namespace sparseloom::kernels::cuda::decode90::resident
