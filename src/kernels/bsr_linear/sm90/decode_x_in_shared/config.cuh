// Constants and the shared memory of kernel.cuh. Included by it.
#pragma once

#include "kernels/bsr_linear/sm90/decode/config.cuh"
#include "kernels/bsr_linear/sm90/decode/entry.h"

namespace sparseloom::kernels::cuda::decode90::x_in_shared {

inline constexpr int kSide = 16;  // of a block: the outputs and the k of one mma
inline constexpr int kBlockBytes = kSide * kSide * 2;

template <class Mma_, int kTokenTiles_>
struct Config {
  using Mma = Mma_;
  static constexpr int kTokenTiles = kTokenTiles_;  // tiles of 8 tokens
  static constexpr int kTokens = 8 * kTokenTiles;
  static constexpr int kWarps = 16;
  static constexpr int kStrips = 4;  // of a warp in a pass; each takes 16 registers of sums at 32 tokens
  static constexpr int kPassStrips = kWarps * kStrips;
  static constexpr int kStageBlocks = 4;
  static constexpr int kStageBytes = kStageBlocks * kBlockBytes;
  static constexpr int kStages = 3;  // together 96 KB of W on their way to a multiprocessor
  static constexpr int kBoxBytes = kTokens * kBox * 2;
  static constexpr int kSlotFours = kTokens * kSide / 4;  // a block row's sums, [token][output], in float4
};

/// How the columns are cut: rank r of a cluster takes [r * range, (r + 1) * range).
struct Cut {
  CUtensorMap x;  // [m, cols]
  int range = 0;  // a multiple of kBox
};

/// Offsets in dynamic shared memory: X, rings, masks, barriers, borders, row pointers. The sums of a pass
/// later overlap X and the rings.
template <class C>
struct Layout {
  unsigned rings, masks, barriers, borders, crow, bytes;

  __host__ __device__ constexpr Layout(int range, int block_rows) {
    const unsigned words = static_cast<unsigned>(range / kSide + 31) / 32;
    rings = static_cast<unsigned>(range / kBox) * C::kBoxBytes;
    masks = rings + C::kWarps * C::kStages * C::kStageBytes;
    constexpr unsigned kSums = C::kPassStrips * C::kSlotFours * 16;
    if (masks < kSums) masks = kSums;
    barriers = masks + (C::kPassStrips * words * 4 + 7) / 8 * 8;
    borders = barriers + 8 * (1 + C::kWarps * C::kStages);
    crow = borders + 8;
    bytes = crow + 4 * static_cast<unsigned>(block_rows + 1);
  }
};

/// Which of a tile's eight tokens is column `column` of the mma. This order puts the eight bytes of X that
/// each lane of half a warp loads at a time into different banks of the swizzled boxes.
__host__ __device__ constexpr int token_of(int column) { return (column & 3) * 2 + (column >> 2); }

/// Where the sums of outputs 4 four .. 4 four + 3 of a token lie in a slot, counted in float4. The XOR puts
/// the lanes of one mma result into different banks.
__host__ __device__ constexpr int slot_four(int token, int four) {
  return token * 4 + (four ^ (token >> 2 & 1) * 2);
}

}  // namespace sparseloom::kernels::cuda::decode90::x_in_shared
