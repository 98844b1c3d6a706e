// sm90_decode for blocks of 16 x 16: X stays in shared memory, 32 tokens of it (grid.y: the next 32, whose W
// comes from L2).
//
//   k ->           rank 0 of a cluster | rank 1             | ..      a cluster has some lines (block rows),
//   every thread block of line 0, warp 0 ....[#].[#]..[#]... | .[#]....[#]        |         it a range of k
//   of them, whose X it copies once: under blocks line 1, warp 1 [#]....[#]...[#].[#]| ..[#].[#]....[#].. |
//   this narrow X fetched block by block is twice the bytes of W line 2, warp 2 ..[#][#]..[#]....[#]|
//   ...[#]...[#]..[#]. |         at 32 tokens, in rows of 32 bytes, a quarter of L2's rate.
//
// A warp takes every sixteenth line, four in a pass, and keeps their sums in registers; W comes by bulk
// copies into its own ring. Behind a pass the sums take the place of X and the rings, and each thread block
// adds up a part of the lines over the cluster, in the order of the ranks: the same bits in every run. More
// than 64 lines of a cluster take further passes, X copied anew.
//
// Reckoned for 32 x 12288 x 12288 on an H200, a cluster of eight: 98 KB of X per thread block, 1.1 us beside
// the first W; 86 KB of other thread blocks' sums, 3 us that nothing hides. Rejected: clusters of four, half
// of that, but X no longer fits.
#pragma once

#include "kernels/cuda/ptx/cluster.cuh"
#include "kernels/cuda/sm90/decode_cut.cuh"
#include "kernels/cuda/sm90/decode_resident_run.cuh"
#include "kernels/cuda/sm90/decode_store.cuh"

namespace sparseloom::kernels::cuda::decode90::resident {

/// Starts copying this thread block's range of X; the boxes are shared out over the warps. All threads
/// together.
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

/// A line's sums to its slot.
template <class C>
__device__ __forceinline__ void store_slot(const float (&sums)[C::kTokenTiles][4], float4* slot, int lane) {
  ptx::opaque(lane);  // else the addresses fill registers all along
#pragma unroll
  for (int t = 0; t < C::kTokenTiles; ++t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 4 + i / 2 * 8, token = 8 * t + token_of(lane % 4 * 2 + i % 2);
      reinterpret_cast<float*>(slot + slot_four(token, row / 4))[row % 4] = sums[t][i];
    }
  }
}

/// Adds the sums of a pass over the cluster and stores them; a warp takes eight tokens of a line at a time.
template <class C>
__device__ __forceinline__ void finish(const Params& params, const float4* slots, int first_line, int lines,
                                       int number, int warps, int lane) {
  const int ranks = 1 << params.cluster_log2;
  for (int task = number; task < lines * C::kTokenTiles; task += warps) {
    const int line = task / C::kTokenTiles, token = task % C::kTokenTiles * 8 + lane / 4, four = lane % 4;
    const float4* place = slots + line * C::kSlotFours + slot_four(token, four);
    float4 sum = {};
#pragma unroll 8
    for (int rank = 0; rank < ranks; ++rank) {
      const float4 part = ptx::ld_shared_cluster(place, rank);
      sum.x += part.x;
      sum.y += part.y;
      sum.z += part.z;
      sum.w += part.w;
    }
    const int row = (first_line + line) * kSide + four * 4;
    store_four<C>(params, sum, BiasFour(params, row), static_cast<int>(blockIdx.y) * C::kTokens + token, row);
  }
}

template <class C>
__global__ void __launch_bounds__(32 * C::kWarps, 1)
    decode_resident_kernel(const __grid_constant__ Params params, const __grid_constant__ Cut cut) {
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
  load_x<C>(cut, rank * cut.range, x, x_full, warp);
  for (int row = threadIdx.x; row <= params.block_rows; row += 32 * C::kWarps)
    crow[row] = ptx::ld_global(params.crow + row);
  __syncthreads();
  const Rows rows{crow, params.block_rows, 0};
  const int clusters = gridDim.x >> params.cluster_log2;
  find_border(params, rows, cluster, clusters, &borders[0]);
  find_border(params, rows, cluster + 1, clusters, &borders[1]);
  __syncthreads();
  const int end_line = borders[1];

  const int words = (cut.range / kSide + 31) / 32, begin = rank * (cut.range / kSide);
  auto* masks = reinterpret_cast<std::uint32_t*>(shared + layout.masks) + warp * C::kLines * words;
  Ring<C> ring(params.values, x + layout.rings + warp * C::kStages * C::kStageBytes, full);
  const std::uint32_t w_lane = lane * 8;
  const int token = token_of(lane / 4);
  const std::uint32_t x_lane = x + token * (kBox * 2) + ((lane % 4 / 2) ^ token) * 16 + lane % 2 * 8;
  unsigned x_parity = 0;
  if (borders[0] == end_line)
    ptx::mbarrier_wait(x_full, 0);  // no copy may be on its way to a thread block that has left
  for (int first_line = borders[0]; first_line < end_line; first_line += C::kPassLines) {
    for (int i = lane; i < C::kLines * words; i += 32) masks[i] = 0;
    __syncwarp();
    const Run runs = find_runs<C>(params.col, crow, first_line + warp, end_line, begin,
                                  begin + cut.range / kSide, masks, words, lane);
    __syncwarp();
    ring.begin(runs);
    ptx::mbarrier_wait(x_full, x_parity);
    x_parity ^= 1;

    float sums[C::kLines][C::kTokenTiles][4] = {};
#pragma unroll
    for (int i = 0; i < C::kLines; ++i) {
      Columns columns(masks + i * words);
      for (int left = __shfl_sync(~0u, runs.count, i); left > 0; left -= C::kStageBlocks) {
        const std::uint32_t stage = ring.wait() + w_lane;
#pragma unroll
        for (int block = 0; block < C::kStageBlocks; ++block) {
          if (block >= left) break;
          const unsigned column = columns.next();  // kBox / kSide = 4 to a box
          multiply<C>(sums[i], stage + block * kBlockBytes,
                      (x_lane + column / 4 * C::kBoxBytes) ^ (column % 4 * (kSide * 2)));
        }
        ring.release(runs);
      }
    }
    __syncthreads();  // X and the rings are done with: the sums take their place
#pragma unroll
    for (int i = 0; i < C::kLines; ++i)
      store_slot<C>(sums[i], slots + (i * C::kWarps + warp) * C::kSlotFours, lane);
    if (params.cluster_log2 > 0) {
      ptx::cluster_sync();
    } else {
      __syncthreads();
    }
    finish<C>(params, slots, first_line, min(end_line - first_line, C::kPassLines), number, warps, lane);
    if (params.cluster_log2 > 0) {
      ptx::cluster_sync();  // the others may still read these sums
    } else {
      __syncthreads();
    }
    if (first_line + C::kPassLines >= end_line) break;
    ptx::fence_proxy_async();
    __syncthreads();
    load_x<C>(cut, rank * cut.range, x, x_full, warp);
  }
}

}  // namespace sparseloom::kernels::cuda::decode90::resident
