// A warp of sm90_decode_lines with blocks of 32 and more on both sides. Included by launch.cuh.
#pragma once

#include "kernels/bsr_linear/sm90/decode_lines/rows/kernel.cuh"
#include "kernels/bsr_linear/sm90/decode_lines/rows/load.cuh"
#include "kernels/shared/ptx/opaque.cuh"
#include "kernels/shared/ptx/sm90/mbarrier.cuh"

namespace sparseloom::kernels::cuda::decode_lines::rows {

/// Stores a warp's sums to a slot, from which the sums of all warps are added.
template <class C>
__device__ __forceinline__ void store_slot(const Sums<C>& sums, float4* slot, int lane) {
  ptx::opaque(lane);  // keeps the addresses out of the mainloop's registers
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
    for (int t = 0; t < C::kTokenTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = line_row<C>(tile, lane / 4 + i / 2 * 8);
        // This is slot_four(8 t + lane % 4 * 2 + i % 2, ..), written as one address for all t plus a
        // constant.
        float4* const place =
            slot + C::slot_four(lane % 4 * 2, row / 4) + (8 * t + i % 2) * C::slot_four(1, 0);
        reinterpret_cast<float*>(place)[row % 4] = sums[tile][t][i];
      }
    }
  }
}

/// A warp's walk over its stages of 32 rows x 32 or 64 columns, every warps-th of the strip.
template <class C>
class WideWalk {
 public:
  /// Reads nothing that another kernel may write. slot: this warp's ring, later its sums. barriers: kStages
  /// of them.
  __device__ __forceinline__ WideWalk(const Params& params, char* slot, char* barriers, int warp, int warps,
                                      int lane)
      : params_(params),
        tokens_(params, lane),
        slot_(reinterpret_cast<float4*>(slot)),
        ring_(ptx::shared_address(slot)),
        full_(ptx::shared_address(barriers)),
        piece_(lane_piece<C>(lane)),
        lane_(lane),
        warp_(warp),
        warps_(warps),
        parts_log2_(params.bn_log2 - (C::kWide ? 6 : 5)) {
    if (lane == 0) {
      if (C::kWide && warp == 0) ptx::prefetch_tensor_map(&params.w);
      for (int stage = 0; stage < C::kStages; ++stage) ptx::mbarrier_init(full_ + stage * 8, 1);
      ptx::fence_mbarrier_init();
      ptx::fence_proxy_async();
    }
    __syncwarp();
  }

  __device__ __forceinline__ void run(const Strip& strip) {
    // X is loaded kAhead stages ahead of its use, and its columns as many stages ahead of that.
    constexpr int kAhead = C::kAhead / C::kStageSteps;
    const int stages = strip.count << parts_log2_;
    int columns[kAhead];  // of the blocks
    Tokens<C> x[kAhead][C::kStageSteps];
    // Prologue: load the columns, then W and X of a stage together.
#pragma unroll
    for (int i = 0; i < kAhead; ++i) columns[i] = column(strip, warp_ + i * warps_, stages);
#pragma unroll
    for (int i = 0; i < (kAhead > C::kStages ? kAhead : C::kStages); ++i) {
      const int stage = warp_ + i * warps_;
      if (i < C::kStages) fill(strip, i, stage, stages);
      if (i >= kAhead) continue;
#pragma unroll
      for (int step = 0; step < C::kStageSteps; ++step) load_x(x[i][step], columns[i], stage, step, stages);
      columns[i] = column(strip, stage + kAhead * warps_, stages);
    }
    Sums<C> sums = {};
    int slot = 0;
    unsigned parity = 0;
    for (int first = warp_; first < stages; first += kAhead * warps_) {
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const int stage = first + i * warps_, ahead = stage + kAhead * warps_;
        if (stage >= stages) break;
        // Wait for the stage of W.
        ptx::mbarrier_wait(full_ + slot * 8, parity);
        // Multiply, and load X for a later stage.
#pragma unroll
        for (int step = 0; step < C::kStageSteps; ++step) {
          multiply<C>(sums, x[i][step], (ring_ + slot * C::kStageBytes + piece_) ^ (step * 64));
          load_x(x[i][step], columns[i], ahead, step, stages);
        }
        columns[i] = column(strip, ahead + kAhead * warps_, stages);
        // Release the stage once all lanes have read it, and start the copy of a later one into it.
        __syncwarp();
        fill(strip, slot, stage + C::kStages * warps_, stages);
        if (++slot == C::kStages) {
          slot = 0;
          parity ^= 1;
        }
      }
    }
    __syncwarp();
    store_slot<C>(sums, slot_, lane_);
  }

 private:
  __device__ __forceinline__ int part(int stage) const { return stage & ((1 << parts_log2_) - 1); }

  __device__ __forceinline__ int column(const Strip& strip, int stage, int stages) const {
    return stage < stages ? ptx::ld_global(params_.col + strip.first + (stage >> parts_log2_)) : 0;
  }

  __device__ __forceinline__ void load_x(Tokens<C>& x, int column, int stage, int step, int stages) const {
    tokens_.load(x, (column << params_.bn_log2) + part(stage) * C::kStageColumns + step * 32, stage < stages);
  }

  /// Starts the copy of a stage into a slot of the ring, if there is such a stage.
  __device__ __forceinline__ void fill(const Strip& strip, int slot, int stage, int stages) const {
    if (stage >= stages || !ptx::elect_lane()) return;
    const int row = (((strip.first + (stage >> parts_log2_)) << params_.strips_log2) + strip.in_row) * kStrip;
    load_w<C>(params_, row, part(stage), ring_ + slot * C::kStageBytes, full_ + slot * 8);
  }

  const Params& params_;
  const TokenReader<C> tokens_;
  float4* const slot_;  // overlaps the ring
  const std::uint32_t ring_, full_, piece_;
  const int lane_, warp_, warps_, parts_log2_;
};

}  // namespace sparseloom::kernels::cuda::decode_lines::rows
