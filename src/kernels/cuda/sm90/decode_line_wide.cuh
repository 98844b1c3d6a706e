// A warp of sm90_decode_lines, blocks of 32 and more on both sides. Included by decode_line_launch.cuh.
#pragma once

#include "kernels/cuda/ptx/sm90/mbarrier.cuh"
#include "kernels/cuda/sm90/decode_line.cuh"
#include "kernels/cuda/sm90/decode_load.cuh"

namespace sparseloom::kernels::cuda::decode90::line {

/// Stages of 32 rows x 32 or 64 columns, of which the warp takes every warps-th.
template <class C>
class WideWalk {
 public:
  /// Reads nothing that another kernel may write. slot: this warp's ring and, later, its sums; kStages
  /// barriers.
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

  __device__ __forceinline__ void run(const Line& line) {
    // Stages that X is asked for ahead of its use, and its columns ahead of that.
    constexpr int kAhead = C::kAhead / C::kStageSteps;
    const int stages = line.count << parts_log2_;
    int columns[kAhead];  // of blocks
    Tokens<C> x[kAhead][C::kStageSteps];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) columns[i] = column(line, warp_ + i * warps_, stages);
#pragma unroll
    for (int i = 0; i < (kAhead > C::kStages ? kAhead : C::kStages);
         ++i) {  // W and X of a stage side by side
      const int stage = warp_ + i * warps_;
      if (i < C::kStages) fill(line, i, stage, stages);
      if (i >= kAhead) continue;
#pragma unroll
      for (int step = 0; step < C::kStageSteps; ++step) load_x(x[i][step], columns[i], stage, step, stages);
      columns[i] = column(line, stage + kAhead * warps_, stages);
    }
    Sums<C> sums = {};
    int slot = 0;
    unsigned parity = 0;
    for (int first = warp_; first < stages; first += kAhead * warps_) {
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const int stage = first + i * warps_, ahead = stage + kAhead * warps_;
        if (stage >= stages) break;
        ptx::mbarrier_wait(full_ + slot * 8, parity);
#pragma unroll
        for (int step = 0; step < C::kStageSteps; ++step) {
          multiply<C>(sums, x[i][step], (ring_ + slot * C::kStageBytes + piece_) ^ (step * 64));
          load_x(x[i][step], columns[i], ahead, step, stages);
        }
        columns[i] = column(line, ahead + kAhead * warps_, stages);
        __syncwarp();  // all lanes have read the stage
        fill(line, slot, stage + C::kStages * warps_, stages);
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

  __device__ __forceinline__ int column(const Line& line, int stage, int stages) const {
    return stage < stages ? ptx::ld_global(params_.col + line.first + (stage >> parts_log2_)) : 0;
  }

  __device__ __forceinline__ void load_x(Tokens<C>& x, int column, int stage, int step, int stages) const {
    tokens_.load(x, (column << params_.bn_log2) + part(stage) * C::kStageColumns + step * 32, stage < stages);
  }

  /// Starts the copy of a stage to a slot of the ring, if there is one.
  __device__ __forceinline__ void fill(const Line& line, int slot, int stage, int stages) const {
    if (stage >= stages || !ptx::elect_lane()) return;
    const int row = (((line.first + (stage >> parts_log2_)) << params_.strips_log2) + line.strip) * kLine;
    load_w<C>(params_, row, part(stage), ring_ + slot * C::kStageBytes, full_ + slot * 8);
  }

  const Params& params_;
  const TokenReader<C> tokens_;
  float4* const slot_;  // in the ring's place
  const std::uint32_t ring_, full_, piece_;
  const int lane_, warp_, warps_, parts_log2_;
};

}  // namespace sparseloom::kernels::cuda::decode90::line
