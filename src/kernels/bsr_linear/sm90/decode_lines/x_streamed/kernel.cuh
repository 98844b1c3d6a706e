// sm90_decode_lines for many blocks of 16 x 16 and 17 to 32 tokens: X streams through shared memory, once for
// all block rows of a cluster of two thread blocks.
//
//   out[t, n] = act(sum_k a[t, k] W[n, k] + bias[n])
//
//   k ->                  thread block 0 of a cluster | thread block 1, from the last block back
//   block row 0, warp 0   [#]...[#].[#]...........    | ...[#]...[#][#]......[#]    W, a block row per warp
//   block row 1, warp 1   ..[#].......[#].[#]..[#]    | [#]......[#].....[#]....
//                         ======> chunks of X         |       chunks of X <======   a ring of four chunks
//                                                                                   of 512 columns
//
// Fetched block by block, X would be twice the bytes of W, in requests of 32 bytes (rows/narrow.cuh). Here
// one thread block starts at the first block of every block row and the other at the last, both given by the
// row pointers, and each takes half of a block row's blocks. Each streams X up to the farthest column in its
// halves of the block rows. Rejected: X kept in shared memory, cut into eight ranges, whose sums take 3 us to
// add up and in which each block row's blocks would have to be found.
//
// Both halves' sums of a block row are added in a fixed order, so every run gives the same bits.
#pragma once

#include "kernels/bsr_linear/sm90/decode_lines/store.cuh"
#include "kernels/bsr_linear/sm90/decode_lines/x_streamed/walk.cuh"
#include "kernels/shared/pipeline/pipeline.cuh"
#include "kernels/shared/ptx/address.cuh"
#include "kernels/shared/ptx/cluster.cuh"
#include "kernels/shared/ptx/griddepcontrol.cuh"
#include "kernels/shared/ptx/opaque.cuh"
#include "kernels/shared/ptx/sm90/bulk.cuh"
#include "kernels/shared/ptx/sm90/tma.cuh"

namespace sparseloom::kernels::cuda::decode_lines::x_streamed {

/// Prefetches a warp's first reads into L2, as if all block rows were alike. All lanes of a warp call it.
template <class C>
__device__ __forceinline__ void prefetch(const Params& params, const Cut& cut, int rank, int number,
                                         int warp) {
  constexpr int kCacheLineWords = 32;  // words of a cache line
  const int lane = threadIdx.x % 32;
  const int edge = static_cast<int>((number + rank) * cut.row_blocks_32 >> 32),
            half = static_cast<int>(cut.row_blocks_32 >> 33) + 1;
  const int first = max(rank == 0 ? edge : edge - half, 0);
  if (warp == 0) {
    if (lane == 0) ptx::prefetch_line_l2(params.crow + number);
    for (int block = first + lane * kCacheLineWords; block < min(first + half, params.blocks);
         block += 32 * kCacheLineWords)
      ptx::prefetch_line_l2(params.col + block);
    const int row = number * kSide;
    if (lane == 0 && params.bias != nullptr && row < params.rows)
      ptx::prefetch_line_l2(static_cast<const std::uint16_t*>(params.bias) + row);
  }
  const int own = rank == 0 ? edge + warp * cut.ahead : edge - (warp + 1) * cut.ahead;
  if (own < 0 || own + cut.ahead > params.blocks || !ptx::elect_lane()) return;
  ptx::bulk_prefetch_l2(static_cast<const char*>(params.values) + std::int64_t{own} * kBlockBytes,
                        static_cast<std::uint32_t>(cut.ahead * kBlockBytes));
}

/// The producer warp, which copies a thread block's chunks of X. It copies the first one at once and the
/// others only after the first copies of W were requested, which would otherwise wait for X.
template <class C>
__device__ __forceinline__ void copy_x(const Cut& cut, SharedStorage<C>& shared, int rank) {
  const std::uint32_t ring = ptx::shared_address(shared.x);
  const Pipeline pipeline(shared.x_full, shared.x_empty);
  const auto copy = [&](int i, int stage) {
    if (!ptx::elect_lane()) return;
    Pipeline::expect(pipeline.full(stage), C::kChunkBytes);
    const int column = (rank == 0 ? i : cut.chunks - 1 - i) * C::kChunkBoxes * kBox;
#pragma unroll
    for (int box = 0; box < C::kChunkBoxes; ++box)
      ptx::tma_load_2d(ring + stage * C::kChunkBytes + box * C::kBoxBytes, &cut.x, column + box * kBox, 0,
                       pipeline.full(stage));
  };
  copy(0, 0);
  __syncwarp();
  // Wait until the consumers have reported the chunks they need.
  const int chunks = chunks_known<C>(shared);
  for (int i = 1, stage = 1, parity = 1; i < chunks; ++i) {
    if (stage == C::kChunks) {
      stage = 0;
      parity ^= 1;
    }
    // Wait for a free stage of the ring, and copy the next chunk into it.
    pipeline.acquire(stage, parity);
    copy(i, stage++);
    __syncwarp();
  }
}

/// Sends a warp's sums to the thread block that adds them up: each thread block gets those of half the
/// tokens.
template <class C>
__device__ __forceinline__ void exchange_partial_sums(const float (&sums)[C::kTokenTiles][4],
                                                      SharedStorage<C>& shared, int rank, int warp) {
  int lane = threadIdx.x % 32;
  ptx::opaque(lane);  // keeps the addresses out of the mainloop's registers
#pragma unroll
  for (int to = 0; to < 2; ++to) {
    const std::uint32_t slot = ptx::address_in_cluster(ptx::shared_address(shared.slots[rank][warp]), to);
#pragma unroll
    for (int t = 0; t < C::kHalfTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = lane / 4 + i / 2 * 8, token = 8 * t + token_of(lane % 4 * 2 + i % 2);
        ptx::st_shared_cluster(slot + slot_four(token, row / 4) * 16 + row % 4 * 4,
                               sums[to * C::kHalfTiles + t][i]);
      }
    }
  }
}

/// Adds the sums of a block row, those of thread block 0 first, and stores half of its tokens. All warps of
/// the block row in a thread block call it.
template <class C>
__device__ __forceinline__ void finish(const Params& params, const Cut& cut, const SharedStorage<C>& shared,
                                       const BiasFour& bias, int rank, int row, int warp) {
  constexpr int kHalf = 8 * C::kHalfTiles;
  const int lane = threadIdx.x % 32, four = lane % 4, first = warp / cut.warps * cut.warps;
  for (int token = warp % cut.warps * 8 + lane / 4; token < kHalf; token += cut.warps * 8) {
    float4 sum = {};
#pragma unroll
    for (int from = 0; from < 2; ++from) {
      for (int w = first; w < first + cut.warps; ++w) {
        const float4 part = shared.slots[from][w][slot_four(token, four)];
        sum.x += part.x;
        sum.y += part.y;
        sum.z += part.z;
        sum.w += part.w;
      }
    }
    store_four<C>(params, sum, bias, rank * kHalf + token, row + four * 4);
  }
}

/// The kernel. A thread block has cut.block_rows * cut.warps consumer warps and one producer warp; a cluster
/// has two thread blocks.
template <class C>
__global__ void __launch_bounds__(C::kThreads, 1)
    decode_lines_x_streamed_kernel(const __grid_constant__ Params params, const __grid_constant__ Cut cut) {
  extern __shared__ __align__(1024) uint4 dynamic_shared[];
  auto& shared = *reinterpret_cast<SharedStorage<C>*>(dynamic_shared);
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32,
            consumers = cut.strips * cut.warps;
  const int rank = static_cast<int>(blockIdx.x % 2),
            number = static_cast<int>(blockIdx.x / 2) * cut.strips + warp / cut.warps;
  const bool multiplies = warp < consumers && number < params.block_rows;
  // Before the previous kernel has ended: set up barriers and prefetch into L2.
  if (threadIdx.x == 0) {
    ptx::prefetch_tensor_map(&cut.x);
    Pipeline::init(shared.x_full, shared.x_empty, 1, static_cast<std::uint32_t>(consumers));
    for (int stage = 0; stage < C::kMostWarps * C::kStages; ++stage)
      ptx::mbarrier_init(ptx::shared_address(&shared.w_full[0][0] + stage), 1);
    ptx::mbarrier_init(ptx::shared_address(&shared.known), static_cast<std::uint32_t>(consumers));
    shared.chunks = 1;
    ptx::fence_mbarrier_init();
    ptx::fence_proxy_async();
  }
  if (multiplies) prefetch<C>(params, cut, rank, number, warp % cut.warps);
  ptx::cluster_arrive();
  __syncthreads();
  ptx::wait_for_earlier_kernels();
  ptx::let_next_kernel_begin();

  if (warp == consumers) {
    // Producer: stream X.
    copy_x<C>(cut, shared, rank);
    ptx::cluster_wait();
    ptx::cluster_sync();
  } else {
    // Consumers: multiply, exchange partial sums with the other thread block, add up and store.
    const int first = multiplies ? ptx::ld_global(params.crow + number) : 0;
    const int end = multiplies ? ptx::ld_global(params.crow + number + 1) : 0;
    const int row = number * kSide, token = token_of(lane / 4);
    const BiasFour bias(params, row + lane % 4 * 4);
    Walk<C> walk(params, cut, shared, rank, first, end, warp % cut.warps, warp);
    float sums[C::kTokenTiles][4] = {};
    walk.run(sums, shared, token * (kBox * 2) + ((lane % 4 / 2) ^ token) * 16 + lane % 2 * 8);
    ptx::cluster_wait();  // the other thread block has begun
    exchange_partial_sums<C>(sums, shared, rank, warp);
    ptx::cluster_sync();
    if (multiplies) finish<C>(params, cut, shared, bias, rank, row, warp);
  }
}

}  // namespace sparseloom::kernels::cuda::decode_lines::x_streamed
