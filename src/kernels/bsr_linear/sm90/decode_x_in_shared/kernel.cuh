// sm90_decode for blocks of 16 x 16: X stays in shared memory, 32 tokens at a time (grid.y counts the groups
// of 32; the later ones get W from L2).
//
//   k ->                rank 0 of a cluster | rank 1             | ..
//   block row 0, warp 0 ....[#].[#]..[#]... | .[#]....[#]        |
//   block row 1, warp 1 [#]....[#]...[#].[#]| ..[#].[#]....[#].. |
//   block row 2, warp 2 ..[#][#]..[#]....[#]| ...[#]...[#]..[#]. |
//
// A cluster takes some block rows, and every thread block of it a range of their k, whose X it copies once.
// Under blocks this narrow, X fetched block by block would be twice the bytes of W at 32 tokens, in rows of
// 32 bytes, which use a quarter of L2's rate.
//
// A warp takes every sixteenth block row, four in a pass, and keeps their sums in registers. W comes by bulk
// copies into the warp's own ring. After a pass the sums take the place of X and the rings, and each thread
// block adds up some of the block rows over the cluster, in the order of the ranks, so every run gives the
// same bits. If a cluster has more than 64 block rows, it needs further passes and copies X again.
//
// For 32 x 12288 x 12288 in clusters of eight, a thread block copies 98 KB of X, which overlaps with the
// first W, and reads 86 KB of other thread blocks' sums, which overlaps with nothing. Rejected: clusters of
// four halve the latter, but X no longer fits.
#pragma once

#include "kernels/bsr_linear/sm90/decode/cut.cuh"
#include "kernels/bsr_linear/sm90/decode/store.cuh"
#include "kernels/bsr_linear/sm90/decode_x_in_shared/run.cuh"
#include "kernels/shared/ptx/cluster.cuh"

namespace sparseloom::kernels::cuda::decode90::x_in_shared {

/// Starts copying this thread block's range of X; the warps divide the boxes among them. All threads call it.
template <class C>
__device__ __forceinline__ void load_x(const Cut& cut, int first_column, std::uint32_t x, std::uint32_t full,
                                       int warp) {
  const int first_token = static_cast<int>(blockIdx.y) * C::kTokens;
  if (!ptx::elect_lane()) return;
  const int boxes = cut.range / kBox;
  if (warp == 0) ptx::mbarrier_arrive_expect_tx(full, static_cast<std::uint32_t>(boxes) * C::kBoxBytes);
  for (int box = warp; box < boxes; box += C::kWarps)
    ptx::tma_load_2d(x + box * C::kBoxBytes, &cut.x, first_column + box * kBox, first_token, full);
}

/// Stores the sums of a block row to its slot.
template <class C>
__device__ __forceinline__ void store_slot(const float (&sums)[C::kTokenTiles][4], float4* slot, int lane) {
  ptx::opaque(lane);  // else the addresses fill registers throughout the kernel
#pragma unroll
  for (int t = 0; t < C::kTokenTiles; ++t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 4 + i / 2 * 8, token = 8 * t + token_of(lane % 4 * 2 + i % 2);
      reinterpret_cast<float*>(slot + slot_four(token, row / 4))[row % 4] = sums[t][i];
    }
  }
}

/// Adds the sums of a pass over the cluster and stores them. A warp takes eight tokens of a block row at a
/// time.
template <class C>
__device__ __forceinline__ void finish(const Params& params, const float4* slots, int first_strip, int strips,
                                       int number, int warps, int lane) {
  const int ranks = 1 << params.cluster_log2;
  for (int task = number; task < strips * C::kTokenTiles; task += warps) {
    const int strip = task / C::kTokenTiles, token = task % C::kTokenTiles * 8 + lane / 4, four = lane % 4;
    const float4* place = slots + strip * C::kSlotFours + slot_four(token, four);
    float4 sum = {};
#pragma unroll 8
    for (int rank = 0; rank < ranks; ++rank) {
      const float4 part = ptx::ld_shared_cluster(place, rank);
      sum.x += part.x;
      sum.y += part.y;
      sum.z += part.z;
      sum.w += part.w;
    }
    const int row = (first_strip + strip) * kSide + four * 4;
    store_four<C>(params, sum, BiasFour(params, row), static_cast<int>(blockIdx.y) * C::kTokens + token, row);
  }
}

template <class C>
__global__ void __launch_bounds__(32 * C::kWarps, 1)
    decode_x_in_shared_kernel(const __grid_constant__ Params params, const __grid_constant__ Cut cut) {
  extern __shared__ __align__(1024) uint4 dynamic_shared[];
  char* shared = reinterpret_cast<char*>(dynamic_shared);
  const Layout<C> layout(cut.range, params.block_rows);
  auto* slots = reinterpret_cast<float4*>(shared);
  auto* borders = reinterpret_cast<int*>(shared + layout.borders);
  auto* crow = reinterpret_cast<std::int32_t*>(shared + layout.crow);
  const std::uint32_t x = ptx::shared_address(shared), x_full = ptx::shared_address(shared + layout.barriers);
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  const int cluster = blockIdx.x >> params.cluster_log2, rank = blockIdx.x & ((1 << params.cluster_log2) - 1);
  const int number = (warp << params.cluster_log2) + rank, warps = C::kWarps << params.cluster_log2;
  const std::uint32_t full = x_full + 8 + warp * C::kStages * 8;
  // Before the earlier kernel has ended: prefetch into L2 and set up barriers.
  if (lane == 0) {
    if (blockIdx.y == 0) prefetch_values<C::kStages * C::kStageBytes>(params, cluster * warps + number);
    if (warp == 0) {
      ptx::prefetch_tensor_map(&cut.x);
      ptx::mbarrier_init(x_full, 1);
    }
    for (int stage = 0; stage < C::kStages; ++stage) ptx::mbarrier_init(full + stage * 8, 1);
    ptx::fence_mbarrier_init();
    ptx::fence_proxy_async();
  }
  if (blockIdx.y == 0) prefetch_index(params, cluster * warps + number, lane);
  __syncthreads();
  ptx::wait_for_earlier_kernels();
  ptx::let_next_kernel_begin();
  // Start copying X, copy the row pointers, and find the block rows of this cluster.
  load_x<C>(cut, rank * cut.range, x, x_full, warp);
  for (int row = threadIdx.x; row <= params.block_rows; row += 32 * C::kWarps)
    crow[row] = ptx::ld_global(params.crow + row);
  __syncthreads();
  const Rows rows{crow, params.block_rows, 0};
  const int clusters = gridDim.x >> params.cluster_log2;
  find_border(params, rows, cluster, clusters, &borders[0]);
  find_border(params, rows, cluster + 1, clusters, &borders[1]);
  __syncthreads();
  const int end_strip = borders[1];

  // Places of this warp's column masks, ring and operands.
  const int words = (cut.range / kSide + 31) / 32, begin = rank * (cut.range / kSide);
  auto* masks = reinterpret_cast<std::uint32_t*>(shared + layout.masks) + warp * C::kStrips * words;
  Ring<C> ring(params.values, x + layout.rings + warp * C::kStages * C::kStageBytes, full);
  const std::uint32_t w_lane = lane * 8;
  const int token = token_of(lane / 4);
  const std::uint32_t x_lane = x + token * (kBox * 2) + ((lane % 4 / 2) ^ token) * 16 + lane % 2 * 8;
  unsigned x_parity = 0;
  if (borders[0] == end_strip)
    ptx::mbarrier_wait(x_full, 0);  // no copy may be on its way to a thread block that has left
  for (int first_strip = borders[0]; first_strip < end_strip; first_strip += C::kPassStrips) {
    // Find the blocks of this warp's block rows in the range, start copying them, and wait for X.
    for (int i = lane; i < C::kStrips * words; i += 32) masks[i] = 0;
    __syncwarp();
    const Run runs = find_runs<C>(params.col, crow, first_strip + warp, end_strip, begin,
                                  begin + cut.range / kSide, masks, words, lane);
    __syncwarp();
    ring.begin(runs);
    ptx::mbarrier_wait(x_full, x_parity);
    x_parity ^= 1;

    // Multiply the blocks, stage by stage.
    float sums[C::kStrips][C::kTokenTiles][4] = {};
#pragma unroll
    for (int i = 0; i < C::kStrips; ++i) {
      Columns columns(masks + i * words);
      for (int left = __shfl_sync(~0u, runs.count, i); left > 0; left -= C::kStageBlocks) {
        const std::uint32_t stage = ring.wait() + w_lane;
#pragma unroll
        for (int block = 0; block < C::kStageBlocks; ++block) {
          if (block >= left) break;
          const unsigned column = columns.next();  // a box has kBox / kSide = 4 block columns
          multiply<C>(sums[i], stage + block * kBlockBytes,
                      (x_lane + column / 4 * C::kBoxBytes) ^ (column % 4 * (kSide * 2)));
        }
        ring.release(runs);
      }
    }
    // X and the rings are no longer needed; the sums take their place.
    __syncthreads();
#pragma unroll
    for (int i = 0; i < C::kStrips; ++i)
      store_slot<C>(sums[i], slots + (i * C::kWarps + warp) * C::kSlotFours, lane);
    if (params.cluster_log2 > 0) {
      ptx::cluster_sync();
    } else {
      __syncthreads();
    }
    // Add up over the cluster and store.
    finish<C>(params, slots, first_strip, min(end_strip - first_strip, C::kPassStrips), number, warps, lane);
    if (params.cluster_log2 > 0) {
      ptx::cluster_sync();  // other thread blocks may still read these sums
    } else {
      __syncthreads();
    }
    if (first_strip + C::kPassStrips >= end_strip) break;
    // Copy X again for the next pass.
    ptx::fence_proxy_async();
    __syncthreads();
    load_x<C>(cut, rank * cut.range, x, x_full, warp);
  }
}

}  // namespace sparseloom::kernels::cuda::decode90::x_in_shared
