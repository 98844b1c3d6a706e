// The consumers of wgmma/dw_regions: two warpgroups, each of which multiplies every other strip of the item.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/bsr_linear/sm90/wgmma/dw/parts.cuh"
#include "kernels/bsr_linear/sm90/wgmma/dw/store.cuh"
#include "kernels/bsr_linear/sm90/wgmma/dw_regions/items.cuh"
#include "kernels/shared/pipeline/pipeline.cuh"
#include "kernels/shared/ptx/address.cuh"
#include "kernels/shared/ptx/ld.cuh"
#include "kernels/shared/ptx/ldmatrix.cuh"
#include "kernels/shared/ptx/sm90/named_barrier.cuh"
#include "kernels/shared/ptx/sm90/stmatrix.cuh"

namespace sparseloom::kernels::cuda::wgmma::dw {

/// 32 tokens of this warp's 16 columns of X, transposed: operand A of two wgmmas.
using FragmentOfX = std::uint32_t[2][4];

/// sums += x^T dy of one stage. The fragments of X for the next half strip are loaded while this half is
/// multiplied. `place` is the shared address of this warp's first entry of `places`; `lane_x` is this lane's
/// offset for ldmatrix, swizzled.
template <class T>
__device__ __forceinline__ void multiply_region(Sums<T>& sums, std::uint32_t stage, std::uint32_t place,
                                                std::uint32_t lane_x, int strips) {
  constexpr int kPlaceStep = T::kConsumers * 4 * 4, kTokens16 = 16 * kBoxSide * 2;
  FragmentOfX x[2];
  const auto load = [&](FragmentOfX& to, std::uint32_t entry, int half) {
    const std::uint32_t row = stage + (((entry & 0xffff) * 16) ^ lane_x) + half * (2 * kTokens16);
    ptx::ldmatrix_x4_trans(to[0], row);
    ptx::ldmatrix_x4_trans(to[1], row + kTokens16);
  };
  // Load the first half strip.
  std::uint32_t entry = ptx::ld_shared_b32(place);
  load(x[0], entry, 0);
  const std::uint32_t base = ptx::wgmma_address(stage);
#pragma unroll
  for (int strip = 0; strip < T::kWarpgroupStrips; ++strip) {
    if (strip >= strips) break;
    const std::uint64_t dy = T::kDescriptorDy | (base + __shfl_sync(0xffffffff, entry, 0) / 0x10000);
    // Multiply the first half; load the second meanwhile.
    ptx::wgmma_fence();
    T::Element::mma(sums[strip], x[0][0], dy);
    T::Element::mma(sums[strip], x[0][1], dy + kTokens16 / 16);
    ptx::wgmma_commit();
    ptx::wgmma_wait<1>();  // the previous half strip has read its registers
    load(x[1], entry, 1);
    // Multiply the second half; load the next strip's first half meanwhile.
    ptx::wgmma_fence();
    T::Element::mma(sums[strip], x[1][0], dy + 2 * kTokens16 / 16);
    T::Element::mma(sums[strip], x[1][1], dy + 3 * kTokens16 / 16);
    ptx::wgmma_commit();
    if (strip + 1 >= T::kWarpgroupStrips || strip + 1 >= strips) break;
    entry = ptx::ld_shared_b32(place + (strip + 1) * kPlaceStep);
    ptx::wgmma_wait<1>();
    load(x[0], entry, 0);
  }
  ptx::wgmma_wait<0>();
}

/// sums += x^T dy of one stage, unit by unit. The next unit's columns of x are loaded while this unit is
/// multiplied, and those of dy stay in registers while the block row is the same. `lane_dy` is like `lane_x`,
/// for operand B.
template <class T>
__device__ __forceinline__ void multiply_units(Sums<T>& sums, std::uint32_t stage, std::uint32_t place,
                                               std::uint32_t lane_x, std::uint32_t lane_dy, int units) {
  constexpr int kPlaceStep = T::kConsumers * 4 * 4, kTokens16 = 16 * kBoxSide * 2,
                kTurns = T::kStageTokens / 16;
  std::uint32_t x[2][kTurns][4], dy[kTurns][4];
  const auto load = [&](std::uint32_t(&to)[kTurns][4], std::uint32_t row) {
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) ptx::ldmatrix_x4_trans(to[turn], row + turn * kTokens16);
  };
  std::uint32_t entry = ptx::ld_shared_b32(place), row = ~entry;
  load(x[0], stage + (((entry & 0xffff) * 16) ^ lane_x));
#pragma unroll
  for (int unit = 0; unit < T::kWarpgroupStrips; ++unit) {
    if (unit >= units) break;
    if ((entry ^ row) >> 16 != 0) {  // another block row
      row = entry;
      load(dy, stage + ((entry / 0x10000 * 16) ^ lane_dy));
    }
    if (unit + 1 < T::kWarpgroupStrips) entry = ptx::ld_shared_b32(place + (unit + 1) * kPlaceStep);
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
      if (turn == 1 && unit + 1 < T::kWarpgroupStrips && unit + 1 < units)
        load(x[(unit + 1) % 2], stage + (((entry & 0xffff) * 16) ^ lane_x));
      T::Element::mma_16(reinterpret_cast<float(&)[4]>(sums[unit][0]), x[unit % 2][turn], dy[turn][0],
                         dy[turn][1]);
      T::Element::mma_16(reinterpret_cast<float(&)[4]>(sums[unit][4]), x[unit % 2][turn], dy[turn][2],
                         dy[turn][3]);
    }
  }
}

/// Stores 16 rows, from first_row on, of this warp's 16 columns of one strip: it rounds the sums, transposes
/// them through the staging buffer, and writes them to their block.
template <class T>
__device__ __forceinline__ void store_rows(const RegionParams& params, const Strip& strip,
                                           std::uint32_t staging, int first_row, const float (&sums)[8]) {
  const int lane = threadIdx.x % 32, fragments_log2 = params.bn_log2 - 4;
  const int fragment = T::kUnits ? strip.blocks - 1 : threadIdx.x / 32 % 4;
  const std::int32_t block = strip.first + (T::kUnits ? 0 : fragment >> fragments_log2);
  if (!T::kUnits && fragment >> fragments_log2 >= strip.blocks) return;  // the fragment is padding
  const int column = (fragment & ((1 << fragments_log2) - 1)) * 16;
  float y[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) y[i] = sums[i];
  if (params.ragged) {  // past the matrix edge the sums may be NaN
    const std::int32_t columns =
        params.cols - (__ldg(params.col + block) << params.bn_log2) - column - lane / 4;
    const std::int32_t rows = params.rows - strip.row * T::kRows - first_row - 2 * (lane % 4);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const bool exists = i / 2 % 2 * 8 < columns && i / 4 * 8 + i % 2 < rows;
      if (!exists) y[i] = 0;
    }
  }
  const std::int64_t place =
      ((static_cast<std::int64_t>(block) * T::kRows + first_row) << params.bn_log2) + column;
  if constexpr (T::kAccumulate) {
    put_in_block<true>(static_cast<float*>(params.out) + place, params.bn_log2, y);
  } else {
    const auto offset = [](int row, int chunk) {
      return static_cast<std::uint32_t>(row * 32 + ((chunk ^ row / 4 % 2) * 16));
    };
    __syncwarp();  // all lanes have read the previous rows
    std::uint32_t pairs[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) pairs[i] = T::Element::pair(y[2 * i], y[2 * i + 1]);
    ptx::stmatrix_x4_trans(staging + offset(lane / 16 * 8 + lane % 8, lane / 8 % 2), pairs);
    __syncwarp();
    auto* out = static_cast<std::uint16_t*>(params.out) + place;
    std::uint32_t words[4];
    ptx::ld_shared(words, staging + offset(lane / 2, lane % 2));
    *reinterpret_cast<uint4*>(out + (lane / 2 << params.bn_log2) + lane % 2 * 8) =
        make_uint4(words[0], words[1], words[2], words[3]);
  }
}

/// Leaves a segment's sums for another thread block, or completes and stores them.
template <class T>
__device__ __forceinline__ void finish_part(const RegionParams& params, RegionStorage<T>& shared,
                                            int warpgroup, int strips, const Sums<T>& sums) {
  constexpr int kParts = 16 / T::kStripSums,
                kHalves = T::kRows / 16;  // strips of a chunk, 16-row halves of a strip
  const int chunks = (strips + kParts - 1) / kParts;
  const std::int32_t slot = __shfl_sync(0xffffffff, shared.item.part.slot, 0);
  if (slot >= 0) {
    leave_part<T>(params, slot, warpgroup, chunks, sums);
    return;
  }
  const std::uint32_t staging = ptx::shared_address(shared.staging[threadIdx.x / 32]);
  const Slots others = shared.item.others;
  await_parts<T>(params, others);
#pragma unroll
  for (int first = 0; first < T::kChunks; first += kChunksAtOnce) {
    if (first >= chunks) break;
    float y[kChunksAtOnce][16] = {};
#pragma unroll
    for (int c = 0; c < kChunksAtOnce && first + c < T::kChunks; ++c) chunk_of<T>(sums, first + c, y[c]);
    add_parts<T>(params, others, warpgroup, first, chunks, y);
#pragma unroll
    for (int i = 0; i < kChunksAtOnce * 2; ++i) {  // 8 sums per thread (16 rows) at a time
      const int own = first * kParts + i / kHalves;
      if (own >= strips) break;
      float rows[8];
#pragma unroll
      for (int sum = 0; sum < 8; ++sum) rows[sum] = y[i / 2][i % 2 * 8 + sum];
      store_rows<T>(params,
                    shared.strips[own * T::kConsumers + warpgroup][T::kUnits ? threadIdx.x / 32 % 4 : 0],
                    staging, i % kHalves * 16, rows);
    }
  }
}

/// The loop of one of the two warpgroups.
template <class T>
__device__ __forceinline__ void consume_region(const RegionParams& params, RegionStorage<T>& shared,
                                               int warpgroup) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  const Pipeline pipeline(shared.full, shared.empty);
  const std::uint32_t ring = ptx::shared_address(shared.ring),
                      place = ptx::shared_address(&shared.places[warpgroup][warp]);
  // For ldmatrix, lanes 8 i to 8 i + 7 address the rows (tokens) of matrix i. Of X, two matrices of 8 columns
  // lie side by side; the other two hold the next 8 tokens.
  const std::uint32_t lane_x = static_cast<std::uint32_t>((lane / 16 * 8 + lane % 8) * (kBoxSide * 2) +
                                                          (((lane / 8 % 2) ^ (lane % 8)) * 16));
  [[maybe_unused]] const std::uint32_t lane_dy = static_cast<std::uint32_t>(
      (lane / 8 % 2 * 8 + lane % 8) * (kBoxSide * 2) + (((lane / 16) ^ (lane % 8)) * 16));
  unsigned turn = 0;  // the stage in three bits, then the parities of all full barriers; each phase is
                      // awaited exactly once
#pragma unroll 1
  while (true) {
    ptx::named_barrier_sync<1, T::kThreads>();  // all warps have finished the previous item
    ptx::named_barrier_sync<1, T::kThreads>();  // this item is published
    const std::int32_t steps = __shfl_sync(0xffffffff, shared.item.part.steps, 0);
    if (steps == 0) return;
    const int boxes = __popc(shared.item.row_boxes) + __popc(shared.item.column_boxes);
    // Find how many strips (or units) of the item are this warp's.
    int strips = (shared.item.strips + 1 - warpgroup) / T::kConsumers;
    if constexpr (T::kUnits) {
      const std::int32_t warp_units = units_of_warp<T>(shared.item.strips);
      strips = max(0, min(warp_units, shared.item.strips - (warpgroup * 4 + warp) * warp_units));
    }
    strips = __shfl_sync(0xffffffff, strips, 0);
    const int stages = min(T::kMostStages, T::kRingBytes / (boxes * T::kBoxBytes));
    Sums<T> sums = {};
    turn &= ~7u;
#pragma unroll 1
    for (std::int32_t step = 0; step < steps * T::kStagesOfStep; ++step) {
      // Wait for the stage.
      const unsigned stage = turn % 8;
      pipeline.wait(stage, turn >> (3 + stage) & 1);
      turn ^= 8u << stage;
      if constexpr (T::kUnits) {
        if (strips > 0)
          multiply_units<T>(sums, ring + stage * boxes * T::kBoxBytes, place, lane_x, lane_dy, strips);
      } else {
        if (strips > 0) multiply_region<T>(sums, ring + stage * boxes * T::kBoxBytes, place, lane_x, strips);
      }
      // Release the stage to the producers.
      __syncwarp();
      if (lane == 0) pipeline.release(stage);
      turn = static_cast<int>(stage) + 1 == stages ? turn & ~7u : turn + 1;
    }
#pragma unroll
    for (auto& strip : sums) ptx::pin(strip);
    finish_part<T>(params, shared, warpgroup, strips, sums);
  }
}

}  // namespace sparseloom::kernels::cuda::wgmma::dw
