// Forward of at most 64 tokens with a block-sparse W on Hopper, bound by the bytes of the stored blocks.
//
//   out[t, n] = act(sum_k a[t, k] W[n, k] + bias[n])
//
// Every warp of the GPU takes a run of units (32 rows of a block) of its own (decode_cut.cuh): W by bulk
// copies into a ring of its own, X from L2 or L1 straight into the registers of the mma, several steps ahead.
// No barrier is shared until the end, when the warps of a cluster add up the lines they have in common, in
// the order of their units: the same bits in every run.
//
// The launch begins while the kernel before it ends (griddepcontrol): barriers are set up and W is asked for
// into L2 by then, at the place where an even cut would find it. Nothing is read or written before that
// kernel's end.
//
// Rejected: row pointers searched in global memory, where every probe waits 0.3 us; flags in memory to join
// sums of the whole GPU, which need scratch that starts as zero, so another launch.
#pragma once

#include "kernels/cuda/ptx/address.cuh"
#include "kernels/cuda/ptx/cluster.cuh"
#include "kernels/cuda/ptx/sm90/mbarrier.cuh"
#include "kernels/cuda/ptx/sm90/tma.cuh"
#include "kernels/cuda/sm90/decode_cut.cuh"
#include "kernels/cuda/sm90/decode_load.cuh"
#include "kernels/cuda/sm90/decode_math.cuh"
#include "kernels/cuda/sm90/decode_store.cuh"

namespace sparseloom::kernels::cuda::decode90 {

/// What the lanes of a warp know of its units: of 32, and of the 32 behind them, whose columns come from
/// memory meanwhile.
class Window {
 public:
  __device__ __forceinline__ Window(const Params& params, const Rows& rows, const Share& share, int first,
                                    int count, int lane)
      : params_(params),
        rows_(rows),
        first_row_(share.first_line >> rows.strips_log2),
        end_row_((share.last_line + (1 << rows.strips_log2) - 1) >> rows.strips_log2),
        first_(first),
        count_(count),
        now_(find(lane)),
        next_(find(32 + lane)) {}

  /// To be called with every unit, in order. At most 32 behind it are known.
  __device__ __forceinline__ void reach(int unit, int lane) {
    if (unit >> 5 == batch_) return;
    ++batch_;
    now_ = next_;
    next_ = find(32 * (batch_ + 1) + lane);
  }

  __device__ __forceinline__ int w_row(int unit) const { return get<&Unit::w_row>(unit); }
  __device__ __forceinline__ int col(int unit) const { return get<&Unit::col>(unit); }
  __device__ __forceinline__ int line(int unit) const { return get<&Unit::line>(unit); }

 private:
  __device__ __forceinline__ Unit find(int unit) const {
    return unit < count_ ? find_unit(params_, rows_, first_ + unit, first_row_, end_row_) : Unit{};
  }

  // Only the batch that is asked for is touched: the other's columns may still be on their way.
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

/// A warp's way along its units.
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

  /// Multiplies all units. Sums of a line that begins before them go to `head`, those of one that goes on
  /// behind them to `tail`, which may be the ring's place.
  __device__ __forceinline__ void run(float4* head, float4* tail) {
    const int steps = count_ << steps_log2_;
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
        if (i % C::kStageSteps == 0)
          ptx::mbarrier_wait(full_ + stage % C::kStages * 8, stage / C::kStages & 1);
        multiply<C>(
            sums, x[i],
            (ring_ + stage % C::kStages * C::kStageBytes + lane_piece<C>(lane_)) ^ (i % C::kStageSteps * 64));
        load_x(x[i], step + C::kAhead);
        if (i % C::kStageSteps != C::kStageSteps - 1) continue;
        __syncwarp();  // all lanes have read the stage
        fill(stage + C::kStages);
        if ((step + 1) >> steps_log2_ != unit) goes_on = end_unit(sums, unit, head);
      }
    }
    __syncwarp();
    if (goes_on) store_slot<C>(sums, tail, lane_);
  }

 private:
  /// Starts the copy of a stage, if there is one.
  __device__ __forceinline__ void fill(int stage) {
    constexpr int kStageLog2 = C::kWide ? 6 : 5;  // of its columns
    const int parts_log2 = params_.bn_log2 - kStageLog2, unit = stage >> parts_log2;
    if (unit >= count_) return;
    const int row = window_.w_row(unit);
    if (!ptx::elect_lane()) return;
    load_w<C>(params_, row, stage & ((1 << parts_log2) - 1), ring_ + stage % C::kStages * C::kStageBytes,
              full_ + stage % C::kStages * 8);
  }

  /// This lane's k of all tokens.
  __device__ __forceinline__ void load_x(Tokens<C>& x, int step) const {
    const int unit = step >> steps_log2_;
    const bool there = unit < count_;
    tokens_.load(x, (window_.col(unit) << params_.bn_log2) + (step & ((1 << steps_log2_) - 1)) * 32, there);
  }

  /// Behind a unit's last step: where its line ends, or the warp's units do, the sums go to their place. True
  /// if the line goes on in the next warp.
  __device__ __forceinline__ bool end_unit(Sums<C>& sums, int unit, float4* head) {
    const int line = window_.line(unit);
    if (unit + 1 < count_ && window_.line(unit + 1) == line) return false;
    const int begin = rows_.unit_of(line), end = begin + rows_.length(line >> rows_.strips_log2);
    if (end > first_ + count_) return true;
    if (begin < first_) {
      store_slot<C>(sums, head, lane_);
    } else {
      store_line<C>(params_, sums, line, lane_);
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
  for (int row = threadIdx.x; row <= params.block_rows; row += 32 * C::kWarps)
    shared.crow[row] = ptx::ld_global(params.crow + row);
  __syncthreads();

  const Rows rows{shared.crow, params.block_rows, params.strips_log2};
  const int clusters = gridDim.x >> params.cluster_log2;
  find_border(params, rows, cluster, clusters, &shared.borders[0]);
  find_border(params, rows, cluster + 1, clusters, &shared.borders[1]);
  __syncthreads();
  const Share share(rows, shared.borders, C::kWarps, params.cluster_log2);
  Walk<C>(params, rows, share, shared, number, warp, lane)
      .run(shared.heads[warp], reinterpret_cast<float4*>(shared.rings[warp]));
  if (params.cluster_log2 > 0) {
    ptx::cluster_sync();
  } else {
    __syncthreads();
  }
  finish<C>(params, rows, share, shared, number, lane);
  if (params.cluster_log2 > 0) ptx::cluster_sync();  // the others may still read these sums
}

}  // namespace sparseloom::kernels::cuda::decode90
