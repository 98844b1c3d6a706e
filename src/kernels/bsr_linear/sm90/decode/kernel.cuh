// Forward of at most 64 tokens with a block-sparse W on Hopper. Its limit is the bytes of the stored blocks.
//
//   out[t, n] = act(sum_k a[t, k] W[n, k] + bias[n])
//
// Every warp of the GPU takes a run of consecutive units (a unit is 32 rows of a block, see cut.cuh).
// It copies W by bulk copies into a ring of its own, and loads X from L2 or L1 straight into the registers of
// the mma, several steps ahead. Warps share no barrier until the end. Then the warps of a cluster add up the
// strips that they have in common, in the order of their units, so every run gives the same bits.
//
// The launch begins while the kernel before it ends (griddepcontrol). Meanwhile it sets up barriers and
// prefetches W into L2, from where W would lie if all blocks were cut evenly. It reads and writes nothing
// else before that kernel's end.
//
// Rejected: a search in row pointers in global memory, where every probe waits 0.3 us; flags in memory to
// join sums over the whole GPU, which would need scratch that starts as zero and so another launch.
#pragma once

#include "kernels/bsr_linear/sm90/decode/cut.cuh"
#include "kernels/bsr_linear/sm90/decode/load.cuh"
#include "kernels/bsr_linear/sm90/decode/math.cuh"
#include "kernels/bsr_linear/sm90/decode/store.cuh"
#include "kernels/shared/ptx/address.cuh"
#include "kernels/shared/ptx/cluster.cuh"
#include "kernels/shared/ptx/sm90/mbarrier.cuh"
#include "kernels/shared/ptx/sm90/tma.cuh"

namespace sparseloom::kernels::cuda::decode90 {

/// What the lanes of a warp know of its units. They hold the current batch of 32 units and the next 32, whose
/// columns are loaded meanwhile.
class Window {
 public:
  __device__ __forceinline__ Window(const Params& params, const Rows& rows, const Share& share, int first,
                                    int count, int lane)
      : params_(params),
        rows_(rows),
        first_row_(share.first_strip >> rows.strips_log2),
        end_row_((share.last_strip + (1 << rows.strips_log2) - 1) >> rows.strips_log2),
        first_(first),
        count_(count),
        now_(find(lane)),
        next_(find(32 + lane)) {}

  /// Must be called with every unit, in order. At most the 32 units after it are known.
  __device__ __forceinline__ void reach(int unit, int lane) {
    if (unit >> 5 == batch_) return;
    ++batch_;
    now_ = next_;
    next_ = find(32 * (batch_ + 1) + lane);
  }

  __device__ __forceinline__ int w_row(int unit) const { return get<&Unit::w_row>(unit); }
  __device__ __forceinline__ int col(int unit) const { return get<&Unit::col>(unit); }
  __device__ __forceinline__ int strip(int unit) const { return get<&Unit::strip>(unit); }

 private:
  __device__ __forceinline__ Unit find(int unit) const {
    return unit < count_ ? find_unit(params_, rows_, first_ + unit, first_row_, end_row_) : Unit{};
  }

  // Reads only the batch that is asked for, since the columns of the other may still be on their way.
  template <int Unit::*kField>
  __device__ __forceinline__ int get(int unit) const {
    return unit >> 5 == batch_ ? __shfl_sync(~0u, now_.*kField, unit & 31)
                               : __shfl_sync(~0u, next_.*kField, unit & 31);
  }

  const Params& params_;
  const Rows& rows_;
  const int first_row_, end_row_, first_, count_;
  int batch_ = 0;
  Unit now_, next_;
};

/// A warp's walk over its units.
template <class C>
class Walk {
 public:
  __device__ __forceinline__ Walk(const Params& params, const Rows& rows, const Share& share,
                                  Shared<C>& shared, int number, int warp, int lane)
      : params_(params),
        rows_(rows),
        first_(share.first_unit + share.begin(number)),
        count_(share.begin(number + 1) - share.begin(number)),
        steps_log2_(params.bn_log2 - 5),
        lane_(lane),
        ring_(ptx::shared_address(shared.rings[warp])),
        full_(ptx::shared_address(shared.full[warp])),
        tokens_(params, lane),
        window_(params, rows, share, first_, count_, lane) {}

  /// Multiplies all units. The sums of a strip that begins before the warp's units go to `head`; those of a
  /// strip that continues in the next warp go to `tail`, which may overlap the ring.
  __device__ __forceinline__ void run(float4* head, float4* tail) {
    const int steps = count_ << steps_log2_;
    // Prologue: start the copies of W into every stage, and load X for the first steps.
#pragma unroll
    for (int stage = 0; stage < C::kStages; ++stage) fill(stage);
    Tokens<C> x[C::kAhead];
#pragma unroll
    for (int step = 0; step < C::kAhead; ++step) load_x(x[step], step);
    Sums<C> sums = {};
    bool goes_on = false;
    for (int first = 0; first < steps; first += C::kAhead) {
#pragma unroll
      for (int i = 0; i < C::kAhead; ++i) {
        const int step = first + i;
        if (step >= steps) break;
        const int unit = step >> steps_log2_, stage = step / C::kStageSteps;
        window_.reach(unit, lane_);
        // Wait for the stage of W.
        if (i % C::kStageSteps == 0)
          ptx::mbarrier_wait(full_ + stage % C::kStages * 8, stage / C::kStages & 1);
        multiply<C>(
            sums, x[i],
            (ring_ + stage % C::kStages * C::kStageBytes + lane_piece<C>(lane_)) ^ (i % C::kStageSteps * 64));
        // Load X for a later step.
        load_x(x[i], step + C::kAhead);
        if (i % C::kStageSteps != C::kStageSteps - 1) continue;
        // Give the stage back once all lanes have read it, and start the copy of a later one into it.
        __syncwarp();
        fill(stage + C::kStages);
        // At the end of a strip, store its sums.
        if ((step + 1) >> steps_log2_ != unit) goes_on = end_unit(sums, unit, head);
      }
    }
    __syncwarp();
    if (goes_on) store_slot<C>(sums, tail, lane_);
  }

 private:
  /// Starts the copy of W into a stage, if there is one left.
  __device__ __forceinline__ void fill(int stage) {
    constexpr int kStageLog2 = C::kWide ? 6 : 5;  // log2 of a stage's columns
    const int parts_log2 = params_.bn_log2 - kStageLog2, unit = stage >> parts_log2;
    if (unit >= count_) return;
    const int row = window_.w_row(unit);
    if (!ptx::elect_lane()) return;
    load_w<C>(params_, row, stage & ((1 << parts_log2) - 1), ring_ + stage % C::kStages * C::kStageBytes,
              full_ + stage % C::kStages * 8);
  }

  /// Loads this lane's k of all tokens for a step.
  __device__ __forceinline__ void load_x(Tokens<C>& x, int step) const {
    const int unit = step >> steps_log2_;
    const bool there = unit < count_;
    tokens_.load(x, (window_.col(unit) << params_.bn_log2) + (step & ((1 << steps_log2_) - 1)) * 32, there);
  }

  /// Called after a unit's last step. If its strip or the warp's units end there, it stores the sums. Returns
  /// true if the strip continues in the next warp.
  __device__ __forceinline__ bool end_unit(Sums<C>& sums, int unit, float4* head) {
    const int strip = window_.strip(unit);
    if (unit + 1 < count_ && window_.strip(unit + 1) == strip) return false;
    const int begin = rows_.unit_of(strip), end = begin + rows_.length(strip >> rows_.strips_log2);
    if (end > first_ + count_) return true;
    if (begin < first_) {
      store_slot<C>(sums, head, lane_);
    } else {
      store_strip<C>(params_, sums, strip, lane_);
    }
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
      for (int t = 0; t < C::kTokenTiles; ++t) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[tile][t][i] = 0;
      }
    }
    return false;
  }

  const Params& params_;
  const Rows& rows_;
  const int first_, count_, steps_log2_, lane_;
  const std::uint32_t ring_, full_;
  const TokenReader<C> tokens_;
  Window window_;
};

template <class C>
__global__ void __launch_bounds__(32 * C::kWarps, 1) decode90_kernel(const __grid_constant__ Params params) {
  extern __shared__ __align__(1024) uint4 dynamic_shared[];
  auto& shared = *reinterpret_cast<Shared<C>*>(dynamic_shared);
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  const int cluster = blockIdx.x >> params.cluster_log2, rank = blockIdx.x & ((1 << params.cluster_log2) - 1);
  const int number = (warp << params.cluster_log2) + rank;
  // Before the earlier kernel has ended: prefetch into L2 and set up barriers.
  if (lane == 0) {
    prefetch_values<C::kRingBytes>(params, cluster * (C::kWarps << params.cluster_log2) + number);
    if (C::kWide && warp == 0) ptx::prefetch_tensor_map(&params.w);
    for (int stage = 0; stage < C::kStages; ++stage)
      ptx::mbarrier_init(ptx::shared_address(&shared.full[warp][stage]), 1);
    ptx::fence_mbarrier_init();
    ptx::fence_proxy_async();
  }
  prefetch_index(params, cluster * (C::kWarps << params.cluster_log2) + number, lane);
  ptx::wait_for_earlier_kernels();
  ptx::let_next_kernel_begin();
  // Copy the row pointers to shared memory.
  for (int row = threadIdx.x; row <= params.block_rows; row += 32 * C::kWarps)
    shared.crow[row] = ptx::ld_global(params.crow + row);
  __syncthreads();

  // Find the strips of this cluster.
  const Rows rows{shared.crow, params.block_rows, params.strips_log2};
  const int clusters = gridDim.x >> params.cluster_log2;
  find_border(params, rows, cluster, clusters, &shared.borders[0]);
  find_border(params, rows, cluster + 1, clusters, &shared.borders[1]);
  __syncthreads();
  const Share share(rows, shared.borders, C::kWarps, params.cluster_log2);
  // Multiply, then add up over the cluster and store.
  Walk<C>(params, rows, share, shared, number, warp, lane)
      .run(shared.heads[warp], reinterpret_cast<float4*>(shared.rings[warp]));
  if (params.cluster_log2 > 0) {
    ptx::cluster_sync();
  } else {
    __syncthreads();
  }
  finish<C>(params, rows, share, shared, number, lane);
  if (params.cluster_log2 > 0) ptx::cluster_sync();  // other thread blocks may still read these sums
}

}  // namespace sparseloom::kernels::cuda::decode90
