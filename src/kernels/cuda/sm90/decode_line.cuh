// sm90_decode_lines: forward of at most 64 tokens with a block-sparse W on Hopper, a few warps to each line:
// 32 outputs of a block row, or 16 where blocks are 16 x 16.
//
//   out[t, n] = act(sum_k a[t, k] W[n, k] + bias[n])
//
//   stored blocks of the line, one after the other   [######][######][######]..
//   in stages of 2 or 4 KB                            0  1    2  0    1  2        warp = stage % warps
//
// Bound by the bytes of the stored blocks, as decode.cuh is, and with its arithmetic. What differs is the
// cut: lines, each of which knows its blocks from two row pointers, instead of an even share of all blocks,
// which has to be found. The first bytes are asked for one read after the kernel ahead has ended, and nothing
// is exchanged between thread blocks: 4 us outside of the stream where decode.cuh needs 8. But a heavy line
// is a few warps', and few lines leave multiprocessors idle: uneven rows go to decode.cuh.
//
// At low density all of W is on its way at once and what is asked for later waits behind it: columns and bias
// come first, then W and tokens stage by stage. Rejected: the next launch's thread blocks beside these, to
// ask for their W meanwhile (half the warps each: 10 to 25 % slower); deeper rings, for which tokens wait.
#pragma once

#include "kernels/cuda/ptx/address.cuh"
#include "kernels/cuda/ptx/griddepcontrol.cuh"
#include "kernels/cuda/ptx/ld_global.cuh"
#include "kernels/cuda/ptx/sm90/bulk.cuh"
#include "kernels/cuda/ptx/sm90/named_barrier.cuh"
#include "kernels/cuda/ptx/sm90/tma.cuh"
#include "kernels/cuda/sm90/decode_line_config.cuh"
#include "kernels/cuda/sm90/decode_store.cuh"

namespace sparseloom::kernels::cuda::decode90::line {

/// A line: its first block and how many there are.
struct Line {
  const int row, strip;
  int first = 0, count = 0;

  __device__ __forceinline__ Line(const Params& params, int number)
      : row(number >> params.strips_log2), strip(number & ((1 << params.strips_log2) - 1)) {}

  __device__ __forceinline__ void read(const Params& params) {
    first = ptx::ld_global(params.crow + row);
    count = ptx::ld_global(params.crow + row + 1) - first;
  }
};

/// Asks L2 for what the warps of a line read first. All lanes of a warp together.
template <class C>
__device__ __forceinline__ void prefetch(const Params& params, const Guess& guess, const Line& line, int warp,
                                         int lane) {
  constexpr int kLineWords = 32;
  const int first = static_cast<int>(line.row * guess.row_blocks_32 >> 32);
  if (warp == 0) {
    if (lane == 0) ptx::prefetch_line_l2(params.crow + line.row);
    const int block = lane * kLineWords;
    if (block <= static_cast<int>(guess.row_blocks_32 >> 32) && first + block < params.blocks)
      ptx::prefetch_line_l2(params.col + first + block);
  }
  const int block = first + warp * guess.units;
  if (warp >= guess.warps || block + guess.units > params.blocks || !ptx::elect_lane()) return;
  const std::uint32_t unit_bytes = C::kRows * 2u << params.bn_log2;
  const std::int64_t unit = (std::int64_t{block} << params.strips_log2) + line.strip;
  ptx::bulk_prefetch_l2(static_cast<const char*>(params.values) + unit * unit_bytes,
                        guess.units * unit_bytes);
}

/// Adds the warps' sums in their order and stores the line.
template <class C>
__device__ __forceinline__ void finish(const Params& params, const char* slots, const BiasFour& bias, int row,
                                       int warps) {
  constexpr int kFours = C::kRows / 4;
  for (int token = threadIdx.x / kFours; token < params.m; token += blockDim.x / kFours) {
    const char* place = slots + C::slot_four(token, threadIdx.x % kFours) * 16;
    float4 sum = {};
#pragma unroll 4
    for (int warp = 0; warp < warps; ++warp) {
      const float4 part = *reinterpret_cast<const float4*>(place + warp * C::kWarpBytes);
      sum.x += part.x;
      sum.y += part.y;
      sum.z += part.z;
      sum.w += part.w;
    }
    store_four<C>(params, sum, bias, token, row);
  }
}

/// Thread blocks of (32 warps of a line, lines). Walk<C>: a warp's way along its blocks of the line, by
/// itself until its sums are in its slot.
template <class C, template <class> class Walk>
__global__ void __launch_bounds__(32 * C::kWarps, 1)
    decode_line_kernel(const __grid_constant__ Params params, const Guess guess) {
  extern __shared__ __align__(1024) uint4 dynamic_shared[];
  char* shared = reinterpret_cast<char*>(dynamic_shared);
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32, warps = blockDim.x / 32;
  const int number = static_cast<int>(blockIdx.x * blockDim.y + threadIdx.y);
  if (number >= params.block_rows << params.strips_log2) return;
  Line line(params, number);
  prefetch<C>(params, guess, line, warp, lane);
  char* const slots = shared + threadIdx.y * warps * C::kWarpBytes;
  char* const barriers =
      shared + warps * blockDim.y * C::kWarpBytes + (threadIdx.y * warps + warp) * C::kStages * 8;
  Walk<C> walk(params, slots + warp * C::kWarpBytes, barriers, warp, warps, lane);
  ptx::wait_for_earlier_kernels();
  ptx::let_next_kernel_begin();
  line.read(params);
  const int row = number * C::kRows + threadIdx.x % (C::kRows / 4) * 4;
  const BiasFour bias(params, row);  // asked for behind the last block, it cost another 0.7 us
  walk.run(line);
  ptx::named_barrier_sync(1 + threadIdx.y, blockDim.x);
  finish<C>(params, slots, bias, row, warps);
}

}  // namespace sparseloom::kernels::cuda::decode90::line
