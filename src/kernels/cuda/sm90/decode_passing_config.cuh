// Numbers and shared memory of decode_passing.cuh. Included by it.
#pragma once

#include "kernels/cuda/sm90/decode_config.cuh"
#include "kernels/cuda/sm90/decode_passing.h"
#include "kernels/cuda/sm90/decode_resident_config.cuh"

namespace sparseloom::kernels::cuda::decode90::passing {

/// kMostWarps_: that multiply; one more copies X. kStageBlocks_: of W that one copy brings to a warp, two of
/// them at a time: 49 to 74 KB on their way to a multiprocessor, where 4.4 TB/s for 1 us take 33. Of six
/// blocks instead of four, copies are 5 % faster at density .8, where they leave room for as many chunks.
template <class Mma_, int kMostWarps_, int kStageBlocks_>
struct Config {
  using Mma = Mma_;
  static constexpr int kTokenTiles = kTokens / 8;
  static constexpr int kMostWarps = kMostWarps_;
  static constexpr int kThreads = 32 * (kMostWarps + 1);
  static constexpr int kChunkBoxes = 8;  // of 64 columns
  static constexpr int kChunkBlocks = kChunkBoxes * resident::kBox / kSide;
  static constexpr int kBoxBytes = kTokens * resident::kBox * 2;
  static constexpr int kChunkBytes = kChunkBoxes * kBoxBytes;
  // Of X in shared memory: how far one line may be ahead of another. With three, 12288 columns take 1 us
  // longer.
  static constexpr int kChunks = 4;
  static constexpr int kStageBlocks = kStageBlocks_;
  static constexpr int kStageBytes = kStageBlocks * resident::kBlockBytes;
  static constexpr int kStages = 2;
  static constexpr int kHalfTiles = kTokenTiles / 2;  // whose outputs one of the two thread blocks stores
  static constexpr int kSlotFours = 8 * kHalfTiles * kSide / 4;
};

/// How lines are shared out, and X is cut: thread block 0 of a cluster has the first half of every line's
/// blocks, 1 the second.
struct Cut {
  CUtensorMap x;                // [m, cols]
  std::uint64_t row_blocks_32;  // blocks of a block row if all were alike, 32 fractional bits
  int lines;                    // of a cluster
  int warps;                    // of a line, in each thread block
  int chunks;                   // of X
  int ahead;                    // blocks that a warp asks L2 for before the kernel ahead has ended
};

template <class C>
struct SharedStorage {
  alignas(1024) char x[C::kChunks][C::kChunkBytes];
  alignas(16) char w[C::kMostWarps][C::kStages][C::kStageBytes];
  float4 slots[2][C::kMostWarps][C::kSlotFours];  // sums of either thread block's warps, [token][output]
  std::uint64_t x_full[C::kChunks], x_empty[C::kChunks];
  std::uint64_t w_full[C::kMostWarps][C::kStages];
  std::uint64_t known;  // ends when all warps have said how many chunks they need
  int chunks;           // the most of them
};

}  // namespace sparseloom::kernels::cuda::decode90::passing
