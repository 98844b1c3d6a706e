// Forward and dX of few tokens with a block-sparse W whose stored blocks are divided evenly, whatever their
// rows:
//
//   forward  out[t, n] = act(sum_k x[t, k] W[n, k] + bias[n])      dX  out[t, n] = sum_k x[t, k] W[k, n]
//
//   grid.x: shares (cut.cuh), the last one first        grid.y: tiles of at most kTokens tokens
//   warps:  eight that multiply, one that copies chunks of X and W into a ring of stages, and one that
//           tells other thread blocks that sums have arrived
//
// The sums of cut strips meet in store.cuh. Rejected: a second kernel that adds them, whose launch takes
// longer than its work; and warps that both copy (by cp.async) and multiply, one after the other (the log has
// the figures).
#pragma once

#include "kernels/bsr_linear/sm90/shares/produce.cuh"
#include "kernels/bsr_linear/sm90/shares/store.cuh"
#include "kernels/shared/ptx/griddepcontrol.cuh"

namespace sparseloom::kernels::cuda::shares {

/// Prefetches this share into L2, as if all block rows had the same length.
__device__ __forceinline__ void prefetch_share(const Params& params, int share) {
  constexpr int kLine = 128, kMost = 64 * 1024;  // bytes of a cache line, and most bytes of values
  constexpr int kWords = kLine / 4;
  for (int row = threadIdx.x * kWords; row <= params.block_rows; row += kThreads * kWords)
    ptx::prefetch_line_l2(params.list_begin + row);
  const std::int64_t first = params.blocks * share / params.shares,
                     last = params.blocks * (share + 1) / params.shares;
  for (std::int64_t block = first + threadIdx.x * kWords; block < last; block += kThreads * kWords) {
    ptx::prefetch_line_l2(params.along + block);
    if (params.slot != nullptr) ptx::prefetch_line_l2(params.slot + block);
  }
  if (params.slot != nullptr) return;  // dX's blocks may lie anywhere
  const char* from = static_cast<const char*>(params.values) + first * params.block_bytes;
  const int bytes = static_cast<int>(min((last - first) * params.block_bytes, std::int64_t{kMost}));
  for (int at = threadIdx.x * kLine; at < bytes; at += kThreads * kLine) ptx::prefetch_line_l2(from + at);
}

template <class C>
__device__ __forceinline__ void consume(const Params& params, int share, Shared<C>& shared) {
  const std::uint32_t full = ptx::shared_address(shared.full), empty = ptx::shared_address(shared.empty),
                      ring = ptx::shared_address(shared.ring);
  const Warp<C> warp;
  Sums<C> sums = {};
  int stage = 0;
  unsigned parity = 0;
  while (true) {
    ptx::mbarrier_wait(full + stage * 8, parity);
    const Record record = shared.records[stage];
    if (record.end == kNoStage) return;
    const std::uint32_t x = ring + stage * C::kStageBytes;
    multiply<C>(sums, warp, x, x + C::kXBytes, record.steps);
    __syncwarp();
    if (warp.lane == 0) ptx::mbarrier_arrive(empty + stage * 8);
    if (record.end != kInside) {
      end_strip<C>(params, warp, record, share, shared, sums);
#pragma unroll
      for (auto& row : sums) {
#pragma unroll
        for (auto& fragment : row) {
#pragma unroll
          for (float& sum : fragment) sum = 0.0f;
        }
      }
    }
    if (++stage == C::kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
}

template <class C>
__global__ void __launch_bounds__(kThreads, 1) shares_kernel(const __grid_constant__ Params params) {
  extern __shared__ __align__(1024) std::byte bytes[];
  auto& shared = *reinterpret_cast<Shared<C>*>(bytes);
  const int share = params.shares - 1 - static_cast<int>(blockIdx.x), warp = threadIdx.x / 32;
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < C::kStages; ++stage) {
      ptx::mbarrier_init(ptx::shared_address(shared.full + stage), 1);
      ptx::mbarrier_init(ptx::shared_address(shared.empty + stage), kConsumers);
    }
    ptx::mbarrier_init(ptx::shared_address(&shared.left), kConsumers);
    ptx::mbarrier_init(ptx::shared_address(&shared.met), 1);
    ptx::fence_mbarrier_init();
    ptx::prefetch_tensor_map(&params.x);
    ptx::prefetch_tensor_map(&params.w);
  }
  prefetch_share(params, share);
  __syncthreads();
  ptx::wait_for_earlier_kernels();
  ptx::let_next_kernel_begin();

  // Find the share.
  copy_lists<kThreads>(params, shared.window);
  Lists lists{params.list_begin, shared.window, params.block_rows < Lists::kWindow ? 0 : 1 << 30};
  const std::int32_t blocks = lists.at(params.block_rows);
  const Cut cut(cost_before(params, params.block_rows, blocks), params.shares);
  const int begin = cut.begin(share), units = cut.begin(share + 1) - begin;
  const int block_row = find_block_row<kThreads>(params, lists, begin);
  if (params.block_rows >= Lists::kWindow) {
    for (int at = threadIdx.x; at < Lists::kWindow; at += kThreads)
      shared.window[at] = ptx::ld_global(params.list_begin + min(block_row + at, params.block_rows));
    lists.first = block_row;
    __syncthreads();
  }
  if (units == 0) return;
  if (warp < kConsumers) {
    consume<C>(params, share, shared);
    return;
  }
  const Cursor cursor = cursor_at(params, lists, block_row, begin, units);
  if (warp == kProducer) {
    produce<C>(params, lists, cut, cursor, share, blocks, shared);
  } else if (cursor.more && cursor.first_piece > 0) {
    ptx::mbarrier_wait(ptx::shared_address(&shared.left), 0);
    if (ptx::elect_lane())
      ptx::st_release_gpu(params.flags + std::int64_t{blockIdx.y} * params.shares + share, params.nonce);
  }
}

}  // namespace sparseloom::kernels::cuda::shares
