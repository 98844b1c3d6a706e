// sm90_decode_lines: forward of at most 64 tokens with a block-sparse W on Hopper, with a group of warps per
// strip (32 outputs of a block row, or 16 for blocks of 16 x 16).
//
//   out[t, n] = act(sum_k a[t, k] W[n, k] + bias[n])
//
//   stored blocks of the strip, one after the other   [######][######][######]..
//   in stages of 2 or 4 KB                             0  1    2  0    1  2        warp = stage % warps
//
// The limit is the bytes of the stored blocks. A strip knows its blocks from two row pointers: the first
// bytes are requested one read after the previous kernel has ended, and thread blocks exchange nothing. But
// only the warps of one group work on a heavy strip, and few strips leave multiprocessors idle. Uneven rows
// therefore go to other kernels. Rejected: equal shares of all blocks for each warp of the GPU, whose sums
// meet in clusters. Finding the shares and exchanging the sums took 8 us outside of the stream, for 4 us
// here; over 485 timed problems such a kernel beside this one gained .17 % in geometric mean, 18 % at most.
//
// At low density all of W is in flight at once, and later requests wait behind it. So columns and bias come
// first, then W and tokens stage by stage. Rejected, since they measured slower: thread blocks of the next
// launch beside these, with half the warps each, to request their W meanwhile; and deeper rings, which delay
// the tokens.
#pragma once

#include "kernels/bsr_linear/sm90/decode_lines/rows/config.cuh"
#include "kernels/bsr_linear/sm90/decode_lines/store.cuh"
#include "kernels/shared/ptx/address.cuh"
#include "kernels/shared/ptx/griddepcontrol.cuh"
#include "kernels/shared/ptx/ld.cuh"
#include "kernels/shared/ptx/sm90/bulk.cuh"
#include "kernels/shared/ptx/sm90/named_barrier.cuh"
#include "kernels/shared/ptx/sm90/tma.cuh"

namespace sparseloom::kernels::cuda::decode_lines::rows {

/// A strip (number `in_row` of block row `row`): its first block and its number of blocks.
struct Strip {
  const int row, in_row;
  int first = 0, count = 0;

  __device__ __forceinline__ Strip(const Params& params, int number)
      : row(number >> params.strips_log2), in_row(number & ((1 << params.strips_log2) - 1)) {}

  __device__ __forceinline__ void read(const Params& params) {
    first = ptx::ld_global(params.crow + row);
    count = ptx::ld_global(params.crow + row + 1) - first;
  }
};

/// Prefetches a strip's first reads into L2. All lanes of a warp call it.
template <class C>
__device__ __forceinline__ void prefetch(const Params& params, const Guess& guess, const Strip& strip,
                                         int warp, int lane) {
  constexpr int kCacheLineWords = 32;  // words of a cache line
  const int first = static_cast<int>(strip.row * guess.row_blocks_32 >> 32);
  if (warp == 0) {
    if (lane == 0) ptx::prefetch_line_l2(params.crow + strip.row);
    const int block = lane * kCacheLineWords;
    if (block <= static_cast<int>(guess.row_blocks_32 >> 32) && first + block < params.blocks)
      ptx::prefetch_line_l2(params.col + first + block);
  }
  const int block = first + warp * guess.units;
  if (warp >= guess.warps || block + guess.units > params.blocks || !ptx::elect_lane()) return;
  const std::uint32_t unit_bytes = C::kRows * 2u << params.bn_log2;
  const std::int64_t unit = (std::int64_t{block} << params.strips_log2) + strip.in_row;
  ptx::bulk_prefetch_l2(static_cast<const char*>(params.values) + unit * unit_bytes,
                        guess.units * unit_bytes);
}

/// The sum of the warps' parts of four outputs, in the order of the warps.
template <class C>
__device__ __forceinline__ float4 sum_of_warps(const char* place, int warps) {
  float4 sum = {};
#pragma unroll 4
  for (int warp = 0; warp < warps; ++warp) {
    const float4 part = *reinterpret_cast<const float4*>(place + warp * C::kWarpBytes);
    sum.x += part.x;
    sum.y += part.y;
    sum.z += part.z;
    sum.w += part.w;
  }
  return sum;
}

/// Adds the warps' sums in the order of the warps and stores the strip.
template <class C>
__device__ __forceinline__ void finish(const Params& params, const char* slots, const BiasFour& bias, int row,
                                       int warps) {
  constexpr int kFours = C::kRows / 4;
  for (int token = threadIdx.x / kFours; token < params.m; token += blockDim.x / kFours) {
    const char* place = slots + C::slot_four(token, threadIdx.x % kFours) * 16;
    store_four<C>(params, sum_of_warps<C>(place, warps), bias, token, row);
  }
}

/// A thread block has the shape (32 * warps of a strip, strips). Walk<C> is a warp's walk over its blocks of
/// the strip; it works alone until its sums are in its slot.
template <class C, template <class> class Walk>
__global__ void __launch_bounds__(32 * C::kWarps, 1)
    decode_lines_rows_kernel(const __grid_constant__ Params params, const Guess guess) {
  extern __shared__ __align__(1024) uint4 dynamic_shared[];
  char* shared = reinterpret_cast<char*>(dynamic_shared);
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32, warps = blockDim.x / 32;
  const int number = static_cast<int>(blockIdx.x * blockDim.y + threadIdx.y);
  // Before the previous kernel has ended: prefetch into L2 and set up barriers.
  if (number >= params.block_rows << params.strips_log2) return;
  Strip strip(params, number);
  prefetch<C>(params, guess, strip, warp, lane);
  char* const slots = shared + threadIdx.y * warps * C::kWarpBytes;
  char* const barriers =
      shared + warps * blockDim.y * C::kWarpBytes + (threadIdx.y * warps + warp) * C::kStages * 8;
  Walk<C> walk(params, slots + warp * C::kWarpBytes, barriers, warp, warps, lane);
  ptx::wait_for_earlier_kernels();
  ptx::let_next_kernel_begin();
  // Read the strip's row pointers, then its bias.
  strip.read(params);
  const int row = number * C::kRows + threadIdx.x % (C::kRows / 4) * 4;
  const BiasFour bias(params, row);  // loaded early to hide its latency at the kernel's end
  // Multiply, then add up the warps' sums and store.
  walk.run(strip);
  ptx::named_barrier_sync(1 + threadIdx.y, blockDim.x);
  finish<C>(params, slots, bias, row, warps);
}

}  // namespace sparseloom::kernels::cuda::decode_lines::rows
