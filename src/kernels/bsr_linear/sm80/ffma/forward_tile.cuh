// Tiles of the fp32 forward and dX kernels (forward.cuh) and their copies from global to shared memory.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/bsr_linear/sm80/ffma/ffma.cuh"
#include "kernels/bsr_linear/sm80/ffma/forward.h"

namespace sparseloom::kernels::cuda::ffma {

/// Tile of kWarpsM x kWarpsN warps, each of kLanesM x kLanesN lanes, each of kTokensPerThread x
/// kOutputsPerThread sums.
template <int kWarpsM, int kWarpsN, int kLanesM_, int kTokensPerThread_, int kOutputsPerThread_,
          int kBlocksPerSm_>
struct ForwardConfig {
  static constexpr int kThreads = 128;
  static constexpr int kLanesM = kLanesM_, kLanesN = 32 / kLanesM_;
  static constexpr int kTokensPerThread = kTokensPerThread_, kOutputsPerThread = kOutputsPerThread_;
  static constexpr int kBlocksPerSm = kBlocksPerSm_;  // thread blocks; bounds the registers
  static constexpr int kWarpColumns = kWarpsN;
  static constexpr int kWarpTokens = kLanesM * kTokensPerThread, kWarpOutputs = kLanesN * kOutputsPerThread;
  static constexpr int kTokens = kWarpsM * kWarpTokens, kOutputs = kWarpsN * kWarpOutputs;
  // 128-byte rows of a: L2 delivers 32-byte rows much more slowly (measured).
  static constexpr int kDepth = 32;
  // A step of 8 x 8 sums takes 2000 issue slots of each of the three warps that share a scheduler, longer
  // than any load. A third step in flight would only cost a resident thread block.
  static constexpr int kStages = 2;
  static constexpr int kChunksPerRow = kDepth / kChunk;          // in rows of a, and of W in forward
  static constexpr int kRowsPerPass = kThreads / kChunksPerRow;  // rows that all threads copy at once
  static constexpr int kPassBytes = kRowsPerPass * kDepth * static_cast<int>(sizeof(float));
  static constexpr int kOutputGroups = kOutputsPerThread / kChunk;  // groups of four neighbouring outputs
  static constexpr int kAFloats = kTokens * kDepth;
  static constexpr int kStageFloats = kAFloats + kOutputs * kDepth;
  // Row pitch of the output tile in shared memory, in floats; the extra chunk spreads rows over the banks.
  static constexpr int kStagingPitch = kOutputs + kChunk;
  static constexpr int kSharedBytes = kStages * kStageFloats * static_cast<int>(sizeof(float));
  static_assert(kWarpsM * kWarpsN * 32 == kThreads, "four warps tile the output");
  static_assert(kTokens % kRowsPerPass == 0, "a is copied in whole passes");
  static_assert(kOutputsPerThread % kChunk == 0, "a thread stores four neighbouring outputs at once");
  static_assert(kTokens * kStagingPitch <= kStages * kStageFloats,
                "the staged output tile must fit in the ring");
};

// Tiles are tall in tokens, since a block's side limits the other direction: a thread needs 8 x 8 sums so
// that FFMA, not shared memory, is the limit. Three thread blocks of 72 KB fill an SM.
using Forward64 = ForwardConfig<2, 2, 8, 8, 8, 3>;       // 128 x 64
using Forward32 = ForwardConfig<4, 1, 8, 8, 8, 3>;       // 256 x 32
using Forward16 = ForwardConfig<4, 1, 8, 8, 4, 3>;       // 256 x 16
using Forward8 = ForwardConfig<4, 1, 16, 4, 4, 3>;       // 256 x 8
using Forward32Short = ForwardConfig<2, 2, 8, 4, 4, 6>;  //  64 x 32, for calls with too few tall tiles

/// The work of a thread block.
struct ForwardTile {
  std::int64_t first_token, first_output;
  int in_block_row;  // first_output inside its block row
  int begin;         // first block of the block row
  int positions;     // length of the reduction
};

template <class C>
__device__ __forceinline__ ForwardTile forward_tile(const ForwardParams& p) {
  // Outputs vary fastest: the tiles in flight share a few rows of tiles of a, which stay in L2.
  ForwardTile tile;
  tile.first_token = std::int64_t{blockIdx.x / p.output_tiles} * C::kTokens;
  tile.first_output = std::int64_t{blockIdx.x % p.output_tiles} * C::kOutputs;
  const std::int64_t block_row = tile.first_output >> p.block_row_shift;
  tile.in_block_row = static_cast<int>(tile.first_output) & (p.block_row_side - 1);
  tile.begin = p.block_row[block_row];
  tile.positions = (p.block_row[block_row + 1] - tile.begin) << p.side_shift;
  return tile;
}

/// Copies of one thread. Its chunk and its rows are the same in every step, so only the source block has to
/// be looked up, one step ahead, since the copies wait for it.
template <class C, Direction kDirection>
class ForwardLoader {
 public:
  __device__ __forceinline__ ForwardLoader(const ForwardParams& params, const ForwardTile& work,
                                           std::uint32_t shared_ring)
      : p(params),
        tile(work),
        ring(shared_ring),
        chunk(threadIdx.x % C::kChunksPerRow),
        row(threadIdx.x / C::kChunksPerRow) {
    rows_left = static_cast<int>(min(std::int64_t{C::kTokens}, p.m - tile.first_token)) - row;
    // A thread whose rows all lie past the last token points to the first one and reads nothing.
    a_row = p.a + (tile.first_token + (rows_left > 0 ? row : 0)) * p.a_stride;
    look_up(0);
  }

  /// Queues the copies of step `step` into its stage of the ring.
  __device__ __forceinline__ void load(int step) {
    const std::uint32_t stage = ring + step % C::kStages * (C::kStageFloats * sizeof(float));
    load_a(step * C::kDepth + chunk * kChunk, stage);
    if constexpr (kDirection == Direction::forward) {
      load_w_rows(step * C::kDepth + chunk * kChunk, stage + C::kAFloats * sizeof(float));
    } else {
      load_w_columns(step * C::kDepth + warp_position(), stage + C::kAFloats * sizeof(float));
    }
    look_up(step + 1);
  }

 private:
  // dx: warp w copies positions 8 w .. 8 w + 7 of a step, which lie in one block since no side is below 8.
  static __device__ __forceinline__ int warp_position() { return threadIdx.x / 32 * 8; }

  __device__ __forceinline__ void look_up(int step) {
    const int position = step * C::kDepth + chunk * kChunk;
    if (position < tile.positions) place = p.across[tile.begin + (position >> p.side_shift)];
    if constexpr (kDirection == Direction::dx) {
      const int w_position = step * C::kDepth + warp_position();
      if (w_position < tile.positions) w_slot = p.slot[tile.begin + (w_position >> p.side_shift)];
    }
  }

  __device__ __forceinline__ void load_a(int position, std::uint32_t stage) const {
    const std::int64_t column = std::int64_t{place} * p.side + (position & (p.side - 1));
    const int floats = position < tile.positions ? chunk_floats(column, p.depth) : 0;
    // A thread's rows differ by multiples of 8, so they share one swizzle key.
    const std::uint32_t target = stage + (row * C::kChunksPerRow + (chunk ^ (row % 8))) * 16;
    copy_column<C::kTokens / C::kRowsPerPass, C::kRowsPerPass, C::kPassBytes>(
        target, a_row + column, C::kRowsPerPass * p.a_stride, floats, rows_left, p.a_aligned, p.a);
  }

  __device__ __forceinline__ void load_w_rows(int position, std::uint32_t w) const {
    if (C::kOutputs < C::kRowsPerPass && row >= C::kOutputs) return;
    const bool inside = position < tile.positions;
    const std::int64_t block = tile.begin + (inside ? position >> p.side_shift : 0);
    const float* source = p.values + ((block << p.block_row_shift) + tile.in_block_row + row) * p.side +
                          (position & (p.side - 1));
    // The multiplication reads rows 4 lane .. 4 lane + 3, and those kLanesN * 4 further on: the swizzle key
    // is the lane.
    const std::uint32_t target = w + (row * C::kChunksPerRow + (chunk ^ (row / kChunk % C::kLanesN))) * 16;
    constexpr int kPasses = C::kOutputs < C::kRowsPerPass ? 1 : C::kOutputs / C::kRowsPerPass;
    copy_column<kPasses, C::kRowsPerPass, C::kPassBytes>(target, source, C::kRowsPerPass * p.side,
                                                         inside ? kChunk : 0, C::kOutputs, p.values_aligned,
                                                         p.values);
  }

  __device__ __forceinline__ void load_w_columns(int position, std::uint32_t w) const {
    constexpr int kRowChunks = C::kOutputs / kChunk, kChunks = 8 * kRowChunks;
    constexpr int kPasses = kChunks < 32 ? 1 : kChunks / 32, kPassRows = 32 / kRowChunks;
    const int lane = threadIdx.x % 32;
    if (lane >= kChunks) return;  // 8 outputs: half a warp suffices
    const std::int64_t w_row =
        (std::int64_t{w_slot} << p.side_shift) + (position & (p.side - 1)) + lane / kRowChunks;
    const float* source =
        p.values + w_row * p.block_row_side + tile.in_block_row + lane % kRowChunks * kChunk;
    copy_column<kPasses, kPassRows, 32 * 16>(
        w + (warp_position() * kRowChunks + lane) * 16, source, kPassRows * p.block_row_side,
        position < tile.positions ? kChunk : 0, 8, p.values_aligned, p.values);
  }

  const ForwardParams& p;
  const ForwardTile& tile;
  std::uint32_t ring;
  int chunk, row, rows_left;
  const float* a_row;
  int place = 0, w_slot = 0;
};

}  // namespace sparseloom::kernels::cuda::ffma
