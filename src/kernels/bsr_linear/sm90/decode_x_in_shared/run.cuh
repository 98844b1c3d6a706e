// The runs of blocks that a warp of kernel.cuh multiplies, and the warp's ring of W. Included by
// it.
#pragma once

#include "kernels/bsr_linear/sm90/decode/math.cuh"
#include "kernels/bsr_linear/sm90/decode_x_in_shared/config.cuh"
#include "kernels/shared/ptx/address.cuh"
#include "kernels/shared/ptx/ld_global.cuh"
#include "kernels/shared/ptx/sm90/bulk.cuh"
#include "kernels/shared/ptx/sm90/mbarrier.cuh"
#include "kernels/shared/ptx/sm90/tma.cuh"

namespace sparseloom::kernels::cuda::decode90::x_in_shared {

/// The blocks that a block row stores inside a range of columns: `count` blocks, contiguous in memory. A mask
/// holds their columns, one bit each.
struct Run {
  int first = 0, count = 0;
};

/// Finds the runs of a warp's block rows (first_block_row + i * kWarps) in a range of block columns; lane i
/// gets that of block row i. It reads all columns of the block rows with sixteen loads under way at a time,
/// since a search for the ends of a run would wait for memory at every probe. masks: `words` zeros for each
/// block row, complete after the next __syncwarp. All lanes of a warp call it.
template <class C>
__device__ __forceinline__ Run find_runs(const std::int32_t* col, const std::int32_t* crow, int first_strip,
                                         int end_strip, int begin, int end, std::uint32_t* masks, int words,
                                         int lane) {
  constexpr int kEach = 4;
  int first[C::kStrips], last[C::kStrips], before[C::kStrips] = {}, inside[C::kStrips] = {}, longest = 0;
#pragma unroll
  for (int i = 0; i < C::kStrips; ++i) {
    const int strip = first_strip + i * C::kWarps;
    first[i] = strip < end_strip ? crow[strip] : 0;
    last[i] = strip < end_strip ? crow[strip + 1] : 0;
    longest = max(longest, last[i] - first[i]);
  }
  // Count the blocks before and inside the range, and mark the columns of the latter.
  for (int from = lane; from < longest + lane; from += 32 * kEach) {
    int column[C::kStrips][kEach];
#pragma unroll
    for (int i = 0; i < C::kStrips; ++i) {
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        const int at = first[i] + from + 32 * j;
        column[i][j] = at < last[i] ? ptx::ld_global(col + at) : end;
      }
    }
#pragma unroll
    for (int i = 0; i < C::kStrips; ++i) {
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        const int in_range = column[i][j] - begin;
        before[i] += in_range < 0;
        if (in_range < 0 || column[i][j] >= end) continue;
        ++inside[i];
        atomicOr(masks + i * words + in_range / 32, 1u << (in_range & 31));
      }
    }
  }
  // Add up over the lanes.
  Run runs;
#pragma unroll
  for (int i = 0; i < C::kStrips; ++i) {
    const int skipped = static_cast<int>(__reduce_add_sync(~0u, static_cast<unsigned>(before[i])));
    const int count = static_cast<int>(__reduce_add_sync(~0u, static_cast<unsigned>(inside[i])));
    if (lane == i) runs = {first[i] + skipped, count};
  }
  return runs;
}

/// A warp's ring of W. Copies are started in the order in which the stages are used, kStages ahead, across
/// all block rows of a pass.
template <class C>
class Ring {
 public:
  __device__ __forceinline__ Ring(const void* values, std::uint32_t stages, std::uint32_t full)
      : values_(static_cast<const char*>(values)), stages_(stages), full_(full) {}

  /// Starts the first copies. Lane i must pass the run of block row i.
  __device__ __forceinline__ void begin(const Run& runs) {
    strip_ = 0;
    from_ = 0;
#pragma unroll
    for (int i = 0; i < C::kStages; ++i) fill(runs);
  }

  /// Waits for the next stage and returns its address.
  __device__ __forceinline__ std::uint32_t wait() {
    ptx::mbarrier_wait(full_ + used_ * 8, parity_);
    return stages_ + used_ * C::kStageBytes;
  }

  /// Gives the stage back after all lanes have read it, and starts the next copy.
  __device__ __forceinline__ void release(const Run& runs) {
    __syncwarp();
    if (++used_ == C::kStages) {
      used_ = 0;
      parity_ ^= 1;
    }
    fill(runs);
  }

 private:
  /// Starts the copy of the next stage, if there is one.
  __device__ __forceinline__ void fill(const Run& runs) {
    // Go on to the next block row once all blocks of this one are requested.
    int count = 0;
    while (strip_ < C::kStrips && from_ >= (count = __shfl_sync(~0u, runs.count, strip_))) {
      ++strip_;
      from_ = 0;
    }
    if (strip_ == C::kStrips) return;
    const int first = __shfl_sync(~0u, runs.first, strip_) + from_;
    const auto bytes = static_cast<std::uint32_t>(min(count - from_, C::kStageBlocks)) * kBlockBytes;
    const std::uint32_t stage = filled_;
    from_ += C::kStageBlocks;
    filled_ = filled_ + 1 == C::kStages ? 0 : filled_ + 1;
    if (!ptx::elect_lane()) return;
    ptx::mbarrier_arrive_expect_tx(full_ + stage * 8, bytes);
    ptx::bulk_load(stages_ + stage * C::kStageBytes, values_ + std::int64_t{first} * kBlockBytes, bytes,
                   full_ + stage * 8, ptx::L2Policy::evict_first);
  }

  const char* const values_;
  const std::uint32_t stages_, full_;
  int strip_ = 0, from_ = 0;  // block row and block of the next copy
  std::uint32_t filled_ = 0, used_ = 0, parity_ = 0;
};

/// Iterates over the columns of a run, in order.
class Columns {
 public:
  __device__ __forceinline__ explicit Columns(const std::uint32_t* mask) : mask_(mask), bits_(*mask) {}

  __device__ __forceinline__ unsigned next() {
    while (bits_ == 0) {
      bits_ = *++mask_;
      base_ += 32;
    }
    const unsigned column = base_ + static_cast<unsigned>(__ffs(static_cast<int>(bits_))) - 1;
    bits_ &= bits_ - 1;
    return column;
  }

 private:
  const std::uint32_t* mask_;
  std::uint32_t bits_;
  unsigned base_ = 0;
};

/// Multiplies one block. w: shared address of this lane's words of row g of the block. x: shared address of
/// this lane's words of token token_of(g) of a tile, at the block's columns. k is distributed as in
/// decode/math.cuh, four to a lane.
template <class C>
__device__ __forceinline__ void multiply(float (&sums)[C::kTokenTiles][4], std::uint32_t w, std::uint32_t x) {
  std::uint32_t low[2], high[2];
  ptx::ld_shared(low, w);
  ptx::ld_shared(high, w + kBlockBytes / 2);
  const std::uint32_t a[4] = {low[0], high[0], low[1], high[1]};
#pragma unroll
  for (int t = 0; t < C::kTokenTiles; ++t) {
    std::uint32_t b[2];
    ptx::ld_shared(b, x + t * (8 * kBox * 2));
    C::Mma::mma(sums[t], a, b[0], b[1]);
  }
}

}  // namespace sparseloom::kernels::cuda::decode90::x_in_shared
