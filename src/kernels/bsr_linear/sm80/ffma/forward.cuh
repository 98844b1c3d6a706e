// Forward and dx in fp32 by FFMA:
//   forward: out[t, o] = act(sum over stored (o, i) of a[t, i] W[o, i] + bias[o])
//   dx:      out[t, i] = sum over stored (o, i) of a[t, o] W[o, i]
//
// A thread block computes kTokens x kOutputs outputs. These lie in one block row (dx: block column), and the
// reduction runs over its stored blocks as if they were one dense strip, in steps of kDepth:
//
//        a  . . [#] . [#] [#] .      position p of the reduction: block p / side of the block row, element
//                \     |   /         p % side of that block; side is the block's (forward: bn, dx: bm)
//         tokens [#####|#####] -> ring of kStages steps in shared memory -> registers -> FFMA
//
// Every thread sums kTokensPerThread x kOutputsPerThread outputs in registers, in the order of the positions.
// `a` lies in shared memory as [token][position] and is read four positions at a time. The 16-byte chunk q of
// row t is stored at q ^ (t % 8), so that the rows of a warp fall into different banks without a transpose. W
// lies as it is stored: [output][position] for forward, read four positions at a time and swizzled alike;
// [position][output] for dx, read four outputs at a time.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/bsr_linear/sm80/ffma/ffma.cuh"
#include "kernels/bsr_linear/sm80/ffma/forward.h"
#include "kernels/bsr_linear/sm80/ffma/forward_tile.cuh"
#include "kernels/bsr_linear/sm80/ffma/launch.cuh"
#include "kernels/shared/epilogue/activation.cuh"
#include "kernels/shared/ptx/address.cuh"
#include "kernels/shared/ptx/cp_async.cuh"

namespace sparseloom::kernels::cuda::ffma {

template <class C>
using ForwardSums = float[C::kTokensPerThread][C::kOutputsPerThread];

/// sums += a W^T over four positions, W read as four positions of each output.
template <class C>
__device__ __forceinline__ void multiply_rows(ForwardSums<C>& sums, const float* a, const float* w) {
  float4 outputs[C::kOutputsPerThread];
#pragma unroll
  for (int j = 0; j < C::kOutputsPerThread; ++j)
    outputs[j] = load_chunk(w + (j / kChunk * C::kLanesN * kChunk + j % kChunk) * C::kDepth);
#pragma unroll
  for (int i = 0; i < C::kTokensPerThread; ++i) {
    const float4 token = load_chunk(a + i * C::kLanesM * C::kDepth);
#pragma unroll
    for (int j = 0; j < C::kOutputsPerThread; ++j) sums[i][j] = fmaf(token.x, outputs[j].x, sums[i][j]);
#pragma unroll
    for (int j = 0; j < C::kOutputsPerThread; ++j) sums[i][j] = fmaf(token.y, outputs[j].y, sums[i][j]);
#pragma unroll
    for (int j = 0; j < C::kOutputsPerThread; ++j) sums[i][j] = fmaf(token.z, outputs[j].z, sums[i][j]);
#pragma unroll
    for (int j = 0; j < C::kOutputsPerThread; ++j) sums[i][j] = fmaf(token.w, outputs[j].w, sums[i][j]);
  }
}

/// Multiplies with W read as four outputs of each position.
template <class C>
__device__ __forceinline__ void multiply_columns(ForwardSums<C>& sums, const float* a, const float* w) {
  float outputs[kChunk][C::kOutputsPerThread];
#pragma unroll
  for (int k = 0; k < kChunk; ++k)
#pragma unroll
    for (int h = 0; h < C::kOutputGroups; ++h)
      *reinterpret_cast<float4*>(&outputs[k][h * kChunk]) =
          load_chunk(w + k * C::kOutputs + h * C::kLanesN * kChunk);
#pragma unroll
  for (int i = 0; i < C::kTokensPerThread; ++i) {
    const float4 token = load_chunk(a + i * C::kLanesM * C::kDepth);
#pragma unroll
    for (int j = 0; j < C::kOutputsPerThread; ++j) sums[i][j] = fmaf(token.x, outputs[0][j], sums[i][j]);
#pragma unroll
    for (int j = 0; j < C::kOutputsPerThread; ++j) sums[i][j] = fmaf(token.y, outputs[1][j], sums[i][j]);
#pragma unroll
    for (int j = 0; j < C::kOutputsPerThread; ++j) sums[i][j] = fmaf(token.z, outputs[2][j], sums[i][j]);
#pragma unroll
    for (int j = 0; j < C::kOutputsPerThread; ++j) sums[i][j] = fmaf(token.w, outputs[3][j], sums[i][j]);
  }
}

/// Position of the thread's sums in the tile: tokens first_token + i kLanesM, outputs first_output + h 4
/// kLanesN + (0 .. 3).
template <class C>
struct ForwardPlace {
  int lane_token, lane_output, first_token, first_output;
  __device__ __forceinline__ ForwardPlace() {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    static_assert(C::kLanesM > C::kLanesN, "tokens are the wide side of every configuration");
    using L = Lanes<C::kLanesN>;
    lane_token = L::wide(lane);
    lane_output = L::narrow(lane);
    first_token = warp / C::kWarpColumns * C::kWarpTokens + lane_token;
    first_output = warp % C::kWarpColumns * C::kWarpOutputs + lane_output * kChunk;
  }
};

/// sums += the product of one step, of which `chunks` chunks of four positions exist.
template <class C, Direction kDirection>
__device__ __forceinline__ void multiply_step(ForwardSums<C>& sums, const float* stage,
                                              const ForwardPlace<C>& place, int chunks) {
  const float* a = stage + place.first_token * C::kDepth;
  const float* w =
      stage + C::kAFloats + place.first_output * (kDirection == Direction::forward ? C::kDepth : 1);
  // Not unrolled: with two chunks in flight, the 8 x 8 sums of forward spill at 168 registers. The other
  // warps hide the latency of the first loads.
#pragma unroll 1
  for (int q = 0; q < chunks; ++q) {
    const float* a_chunk = a + (q ^ (place.lane_token % 8)) * kChunk;
    if constexpr (kDirection == Direction::forward) {
      multiply_rows<C>(sums, a_chunk, w + (q ^ place.lane_output) * kChunk);
    } else {
      multiply_columns<C>(sums, a_chunk, w + q * kChunk * C::kOutputs);
    }
  }
}

/// out <- act(sums + bias) + residual, through shared memory. Rows are then written contiguously, and the
/// activation is compiled once rather than once per sum.
template <class C>
__device__ __forceinline__ void store_tile(const ForwardParams& p, const ForwardTile& tile,
                                           const ForwardSums<C>& sums, const ForwardPlace<C>& place,
                                           float* staging) {
#pragma unroll
  for (int i = 0; i < C::kTokensPerThread; ++i)
#pragma unroll
    for (int h = 0; h < C::kOutputGroups; ++h) {
      const float* s = &sums[i][h * kChunk];
      *reinterpret_cast<float4*>(staging + (place.first_token + i * C::kLanesM) * C::kStagingPitch +
                                 place.first_output + h * C::kLanesN * kChunk) =
          make_float4(s[0], s[1], s[2], s[3]);
    }
  __syncthreads();
  constexpr int kRowChunks = C::kOutputs / kChunk, kRows = C::kThreads / kRowChunks;
  const int in_tile = threadIdx.x % kRowChunks * kChunk;
  const std::int64_t output = tile.first_output + in_tile;
  const int floats = chunk_floats(output, p.width);
  float bias[kChunk] = {};
#pragma unroll
  for (int j = 0; j < kChunk; ++j)
    if (p.bias && j < floats) bias[j] = p.bias[output + j];
  const int tokens = static_cast<int>(min(std::int64_t{C::kTokens}, p.m - tile.first_token));
#pragma unroll 2
  for (int t = threadIdx.x / kRowChunks; t < tokens; t += kRows) {
    const float4 sum = load_chunk(staging + t * C::kStagingPitch + in_tile);
    float y[kChunk] = {sum.x + bias[0], sum.y + bias[1], sum.z + bias[2], sum.w + bias[3]};
    epilogue::activate(p.activation, y);
    if (p.residual != nullptr) {
#pragma unroll
      for (int j = 0; j < kChunk; ++j)
        if (j < floats) y[j] += p.residual[(tile.first_token + t) * p.residual_stride + output + j];
    }
    store_chunk(p.out + (tile.first_token + t) * p.out_stride + output, make_float4(y[0], y[1], y[2], y[3]),
                floats, p.out_aligned);
  }
}

template <class C, Direction kDirection>
__global__ void __launch_bounds__(C::kThreads, C::kBlocksPerSm)
    ffma_forward_kernel(const __grid_constant__ ForwardParams p) {
  extern __shared__ __align__(16) float ring[];
  const ForwardTile tile = forward_tile<C>(p);
  const ForwardPlace<C> place;
  const int steps = (tile.positions + C::kDepth - 1) / C::kDepth;
  const bool has_tokens = tile.first_token + place.first_token - place.lane_token < p.m;  // uniform in a warp
  ForwardLoader<C, kDirection> loader(p, tile, ptx::shared_address(ring));
  ForwardSums<C> sums = {};

  // Prologue: fill all stages but one.
  for (int step = 0; step < C::kStages - 1; ++step) {
    if (step < steps) loader.load(step);
    ptx::cp_async_commit();
  }
  for (int step = 0; step < steps; ++step) {
    // Wait for the stage. After the barrier, all threads have read the stage that is filled next.
    ptx::cp_async_wait<C::kStages - 2>();
    __syncthreads();
    // Issue the copies of a later step.
    if (step + C::kStages - 1 < steps) loader.load(step + C::kStages - 1);
    ptx::cp_async_commit();
    // Multiply the step.
    const int chunks = min(C::kDepth, tile.positions - step * C::kDepth) / kChunk;
    if (has_tokens)
      multiply_step<C, kDirection>(sums, ring + step % C::kStages * C::kStageFloats, place, chunks);
  }
  __syncthreads();  // the epilogue's staging area overwrites the ring
  store_tile<C>(p, tile, sums, place, ring);
}

template <class C, Direction kDirection, ForwardShape kShape>
cudaError_t launch_forward_config(const ForwardParams& params, unsigned grid, int device,
                                  cudaStream_t stream) noexcept {
  static_assert(C::kTokens == extent(kShape).tokens && C::kOutputs == extent(kShape).outputs,
                "forward_shape.h must name this tile");
  return launch_kernel<&ffma_forward_kernel<C, kDirection>, C::kThreads, C::kSharedBytes>(params, grid,
                                                                                          device, stream);
}

template <Direction kDirection>
cudaError_t launch_forward(const ForwardParams& params, ForwardShape shape, unsigned grid, int device,
                           cudaStream_t stream) noexcept {
  switch (shape) {
    case ForwardShape::t128x64:
      return launch_forward_config<Forward64, kDirection, ForwardShape::t128x64>(params, grid, device,
                                                                                 stream);
    case ForwardShape::t256x32:
      return launch_forward_config<Forward32, kDirection, ForwardShape::t256x32>(params, grid, device,
                                                                                 stream);
    case ForwardShape::t256x16:
      return launch_forward_config<Forward16, kDirection, ForwardShape::t256x16>(params, grid, device,
                                                                                 stream);
    case ForwardShape::t256x8:
      return launch_forward_config<Forward8, kDirection, ForwardShape::t256x8>(params, grid, device, stream);
    case ForwardShape::t64x32:
      return launch_forward_config<Forward32Short, kDirection, ForwardShape::t64x32>(params, grid, device,
                                                                                     stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace sparseloom::kernels::cuda::ffma
