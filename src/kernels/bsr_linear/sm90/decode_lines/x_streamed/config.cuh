// Constants, parameters and shared memory of kernel.cuh. Included by it.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/bsr_linear/sm90/decode_lines/x_streamed/entry.h"

namespace sparseloom::kernels::cuda::decode_lines::x_streamed {

inline constexpr int kBox = 64;  // columns of X in 128 bytes, a row of a box

/// kMostWarps_: the most consumer warps; one more warp copies X. kStageBlocks_: blocks of W per stage; each
/// warp has two stages. This keeps 49 to 74 KB in flight per multiprocessor; DRAM at 4.4 TB/s with 1 us of
/// latency needs 33 KB. Copies of six blocks measured faster than copies of four at high density, where they
/// leave room for as many chunks.
template <class Mma_, int kMostWarps_, int kStageBlocks_>
struct Config {
  using Mma = Mma_;
  static constexpr int kTokenTiles = kTokens / 8;
  static constexpr int kMostWarps = kMostWarps_;
  static constexpr int kThreads = 32 * (kMostWarps + 1);
  static constexpr int kChunkBoxes = 8;  // boxes of 64 columns per chunk
  static constexpr int kChunkBlocks = kChunkBoxes * kBox / kSide;
  static constexpr int kBoxBytes = kTokens * kBox * 2;
  static constexpr int kChunkBytes = kChunkBoxes * kBoxBytes;
  // Chunks of X in the ring, which limit how far one block row may be ahead of another. Three measured
  // slower.
  static constexpr int kChunks = 4;
  static constexpr int kStageBlocks = kStageBlocks_;
  static constexpr int kStageBytes = kStageBlocks * kBlockBytes;
  static constexpr int kStages = 2;
  static constexpr int kHalfTiles = kTokenTiles / 2;  // tiles that each of the two thread blocks stores
  static constexpr int kSlotFours = 8 * kHalfTiles * kSide / 4;
};

/// The token, of a tile's eight, in column `column` of the mma. This order puts the eight bytes of X that
/// each lane of half a warp loads at a time into different banks of the swizzled boxes.
__host__ __device__ constexpr int token_of(int column) { return (column & 3) * 2 + (column >> 2); }

/// The division of block rows and X. Thread block 0 of a cluster takes the first half of every block row's
/// blocks, thread block 1 the second.
struct Cut {
  CUtensorMap x;                // [m, cols]
  std::uint64_t row_blocks_32;  // blocks per block row if all were alike, with 32 fractional bits
  int strips;                   // block rows of a cluster
  int warps;                    // warps per block row in each thread block
  int chunks;                   // chunks of X
  int ahead;                    // blocks that a warp prefetches into L2 before the previous kernel has ended
};

template <class C>
struct SharedStorage {
  alignas(1024) char x[C::kChunks][C::kChunkBytes];
  alignas(16) char w[C::kMostWarps][C::kStages][C::kStageBytes];
  float4 slots[2][C::kMostWarps][C::kSlotFours];  // sums of the warps of both thread blocks, [token][output]
  std::uint64_t x_full[C::kChunks], x_empty[C::kChunks];
  std::uint64_t w_full[C::kMostWarps][C::kStages];
  std::uint64_t known;  // completes when all warps have reported the chunks they need
  int chunks;           // the largest number reported
};

}  // namespace sparseloom::kernels::cuda::decode_lines::x_streamed
