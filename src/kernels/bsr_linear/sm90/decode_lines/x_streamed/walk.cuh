// A warp's walk over its blocks of a block row while X streams by. Included by kernel.cuh.
#pragma once

#include "kernels/bsr_linear/sm90/decode_lines/params.cuh"
#include "kernels/bsr_linear/sm90/decode_lines/x_streamed/config.cuh"
#include "kernels/shared/pipeline/pipeline.cuh"
#include "kernels/shared/ptx/address.cuh"
#include "kernels/shared/ptx/ld.cuh"
#include "kernels/shared/ptx/sm90/bulk.cuh"
#include "kernels/shared/ptx/sm90/mbarrier.cuh"
#include "kernels/shared/ptx/sm90/tma.cuh"

namespace sparseloom::kernels::cuda::decode_lines::x_streamed {

/// Number of chunks of X that this thread block streams, at least one. It waits until the warps have reported
/// the chunks they need.
template <class C>
__device__ __forceinline__ int chunks_known(const SharedStorage<C>& shared) {
  ptx::mbarrier_wait(ptx::shared_address(&shared.known), 0);
  return static_cast<int>(ptx::ld_shared_b32(ptx::shared_address(&shared.chunks)));
}

/// The sequence of chunks of X for one consumer warp. The warp releases each before it waits for the next.
template <class C>
class XStreamed {
 public:
  __device__ __forceinline__ explicit XStreamed(SharedStorage<C>& shared)
      : ring_(ptx::shared_address(shared.x)), pipeline_(shared.x_full, shared.x_empty) {
    pipeline_.wait(0, 0);
  }

  /// Waits for a chunk, which must not precede the previous one, and returns its address. All lanes of a warp
  /// call it and the next function.
  __device__ __forceinline__ std::uint32_t reach(int chunk) {
    while (at_ < chunk) step();
    return ring_ + stage_ * C::kChunkBytes;
  }

  /// Releases all remaining chunks, of `chunks` in all, so that other warps can proceed.
  __device__ __forceinline__ void leave(int chunks) {
    while (at_ + 1 < chunks) step();
  }

 private:
  __device__ __forceinline__ void step() {
    __syncwarp();  // all lanes have read the chunk
    if (threadIdx.x % 32 == 0) pipeline_.release(stage_);
    ++at_;
    if (++stage_ == C::kChunks) {
      stage_ = 0;
      parity_ ^= 1;
    }
    pipeline_.wait(stage_, parity_);
  }

  const std::uint32_t ring_;
  const Pipeline pipeline_;
  int at_ = 0;
  std::uint32_t stage_ = 0, parity_ = 0;
};

/// Multiplies one block. w: shared address of this lane's words of row g of the block. x: shared address of
/// this lane's words of token token_of(g) of a tile, at the block's columns. k is distributed as in
/// ../rows/math.cuh, four to a lane.
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

/// A warp's walk over its groups of blocks. Half of a block row's blocks are cut into groups of kStageBlocks,
/// counted from the block row's first block or back from its last; the warp takes every warps-th group
/// through a ring of its own. A place is a block column counted from the end of X at which the thread block
/// starts.
template <class C>
class Walk {
 public:
  /// first, end: the block row's blocks. warp: index among the block row's warps. in_block: index in the
  /// thread block.
  __device__ __forceinline__ Walk(const Params& params, const Cut& cut, SharedStorage<C>& shared, int rank,
                                  int first, int end, int warp, int in_block)
      : values_(static_cast<const char*>(params.values)),
        col_(params.col),
        backward_(rank != 0),
        edge_(backward_ ? end - 1 : first),
        half_((end - first + 1 - rank) / 2),
        warp_(warp),
        warps_(cut.warps),
        groups_(max((half_ + C::kStageBlocks - 1) / C::kStageBlocks - warp + cut.warps - 1, 0) / cut.warps),
        last_place_(cut.chunks * C::kChunkBlocks - 1),
        w_(ptx::shared_address(shared.w[in_block])),
        w_full_(ptx::shared_address(shared.w_full[in_block])) {}

  /// sums += the blocks. x: offset of this lane's words in a chunk.
  __device__ __forceinline__ void run(float (&sums)[C::kTokenTiles][4], SharedStorage<C>& shared,
                                      std::uint32_t x) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    // Start the copies of W, and report how many chunks are needed.
    const int places = place(lane), next = place(kPlaces + lane), farthest = place_of(max(half_ - 1, 0));
    for (int i = 0; i < C::kStages; ++i) fill(i, i);
    if (lane == 0) {
      if (half_ > 0) atomicMax(&shared.chunks, farthest / C::kChunkBlocks + 1);
      ptx::mbarrier_arrive(ptx::shared_address(&shared.known));
    }
    __syncwarp();
    XStreamed<C> passing(shared);
    multiply_all(sums, passing, x, places, next);
    passing.leave(chunks_known<C>(shared));
  }

 private:
  // The places of this many groups fit in one register per lane of a warp.
  static constexpr int kGroups = 32 / C::kStageBlocks, kPlaces = kGroups * C::kStageBlocks;

  /// First block of a group of this warp, counted from the block row's first or last.
  __device__ __forceinline__ int block_of(int group) const {
    return (group * warps_ + warp_) * C::kStageBlocks;
  }
  __device__ __forceinline__ int blocks_in(int group) const {
    return min(half_ - block_of(group), C::kStageBlocks);
  }

  /// Place of a block that is counted from the block row's first or last; any place if it is past the half.
  __device__ __forceinline__ int place_of(int block) const {
    const int column = ptx::ld_global_if(block < half_, col_ + (backward_ ? edge_ - block : edge_ + block));
    return backward_ ? last_place_ - column : column;
  }
  /// Place of block `index` of this warp.
  __device__ __forceinline__ int place(int index) const {
    return place_of(block_of(index / C::kStageBlocks) + index % C::kStageBlocks);
  }

  /// Starts the copy of a group, if there is one.
  __device__ __forceinline__ void fill(int group, std::uint32_t stage) const {
    if (group >= groups_ || !ptx::elect_lane()) return;
    const int block = block_of(group), count = blocks_in(group);
    const std::int64_t first = backward_ ? edge_ + 1 - block - count : edge_ + block;
    const auto bytes = static_cast<std::uint32_t>(count * kBlockBytes);
    ptx::mbarrier_arrive_expect_tx(w_full_ + stage * 8, bytes);
    ptx::bulk_load(w_ + stage * C::kStageBytes, values_ + first * kBlockBytes, bytes, w_full_ + stage * 8,
                   ptx::L2Policy::evict_first);
  }

  __device__ __forceinline__ void multiply_all(float (&sums)[C::kTokenTiles][4], XStreamed<C>& passing,
                                               std::uint32_t x, int places, int next) const {
    const std::uint32_t lane = threadIdx.x % 32;
    std::uint32_t stage = 0, parity = 0;
#pragma unroll 1
    for (int base = 0; base < groups_; base += kGroups) {
#pragma unroll 1
      for (int turn = 0; turn < min(groups_ - base, kGroups); ++turn) {
        // Wait for the stage of W.
        const int count = blocks_in(base + turn);
        ptx::mbarrier_wait(w_full_ + stage * 8, parity);
        const std::uint32_t w = w_ + stage * C::kStageBytes + lane * 8;
        // Multiply its blocks, each once its chunk of X has arrived.
#pragma unroll
        for (int i = 0; i < C::kStageBlocks; ++i) {
          if (i >= count) break;
          const int at = __shfl_sync(~0u, places, turn * C::kStageBlocks + i);
          const int column = backward_ ? C::kChunkBlocks - 1 - at % C::kChunkBlocks : at % C::kChunkBlocks,
                    in_stage = backward_ ? count - 1 - i : i;
          const std::uint32_t chunk = passing.reach(at / C::kChunkBlocks);
          multiply<C>(sums, w + in_stage * kBlockBytes,
                      chunk + ((x + column / 4 * C::kBoxBytes) ^ (column % 4 * (kSide * 2))));
        }
        // Release the stage once all lanes have read it, and start the copy of a later group into it.
        __syncwarp();
        fill(base + turn + C::kStages, stage);
        if (++stage == C::kStages) {
          stage = 0;
          parity ^= 1;
        }
      }
      // Load the places of later groups.
      places = next;
      next = place((base + kGroups) * C::kStageBlocks + kPlaces + static_cast<int>(lane));
    }
  }

  const char* const values_;
  const std::int32_t* const col_;
  const bool backward_;
  const int edge_, half_;  // the block row's first or last block; number of blocks in this half
  const int warp_, warps_, groups_;
  const int last_place_;
  const std::uint32_t w_, w_full_;
};

}  // namespace sparseloom::kernels::cuda::decode_lines::x_streamed
