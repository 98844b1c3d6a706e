// Compile-time side of wgmma_sdd_region.cuh: what a thread block holds, and where it lies in shared memory.
//
//   region  some block rows by some block columns: all its 64-wide boxes that stored blocks touch are read,
//   once strip   up to four 16-column pieces of X, those of consecutive stored blocks of one block row, by
//   that row of dY: one wgmma, M
//           by pieces (each warp reads its own from wherever it lies), N the block row. 16-column pieces are
//           why X comes through registers: from shared memory wgmma takes 64 columns side by side, or twice
//           32 in 64-byte rows
//   unit    16 x 16 of a stored block, with block rows of 16: two operands of mma.sync, four to a strip, a
//   warp's own each
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/ptx/convert.cuh"
#include "kernels/cuda/ptx/mma.cuh"
#include "kernels/cuda/ptx/sm90/registers.cuh"
#include "kernels/cuda/ptx/sm90/wgmma_rs.cuh"
#include "kernels/cuda/sm90/wgmma_sdd_region.h"

namespace sparseloom::kernels::cuda::wgmma_sdd {

struct RegionBf16 {
  template <int kSums>
  static __device__ __forceinline__ void mma(float (&d)[kSums], const std::uint32_t (&x)[4],
                                             std::uint64_t dy) {
    ptx::wgmma_rs_bf16<true>(d, x, dy);
  }
  static __device__ __forceinline__ void mma_16(float (&d)[4], const std::uint32_t (&x)[4], std::uint32_t dy0,
                                                std::uint32_t dy1) {
    ptx::mma_m16n8k16_bf16(d, x, dy0, dy1);
  }
  static __device__ __forceinline__ std::uint32_t pair(float low, float high) {
    return ptx::cvt_rn_bf16x2(low, high);
  }
};

struct RegionF16 {
  template <int kSums>
  static __device__ __forceinline__ void mma(float (&d)[kSums], const std::uint32_t (&x)[4],
                                             std::uint64_t dy) {
    ptx::wgmma_rs_f16<true>(d, x, dy);
  }
  static __device__ __forceinline__ void mma_16(float (&d)[4], const std::uint32_t (&x)[4], std::uint32_t dy0,
                                                std::uint32_t dy1) {
    ptx::mma_m16n8k16_f16(d, x, dy0, dy1);
  }
  static __device__ __forceinline__ std::uint32_t pair(float low, float high) {
    return ptx::cvt_rn_f16x2(low, high);
  }
};

template <class Element_, int kRows_, bool kAccumulate_>
struct RegionTile {
  using Element = Element_;
  static constexpr bool kAccumulate = kAccumulate_;
  static constexpr int kRows = kRows_, kStripSums = kRows / 2;  // of a thread
  static constexpr int kConsumers = 2, kProducers = 4, kThreads = (kConsumers + 1) * 128;
  static constexpr int kProducerRegisters = kRows == 16 ? 72 : 56,
                       kConsumerRegisters = kRows == 16 ? 216 : 224;
  static constexpr int kStrips = region_strips(kRows), kWarpgroupStrips = kStrips / kConsumers;
  static constexpr int kChunks = kWarpgroupStrips * kStripSums / 16;  // of 16 sums: one strip, or two
  // Rows of 16: each warp multiplies 16 x 16 units of its own by mma.sync, and a strip is four of them, from
  // anywhere.
  static constexpr bool kUnits = kRows == 16;
  static constexpr int kStripUnits = kUnits ? 4 : 1,
                       kRoom = kStrips * kStripUnits;  // of an item: units, or strips
  static constexpr int kStageTokens = region_stage_tokens(kRows),
                       kStagesOfStep = kStep16.tokens / kStageTokens;
  static constexpr int kBoxBytes = kStageTokens * kBoxSide * 2,
                       kRingBytes = 2 * region_boxes(32) * kStep16.tokens * kBoxSide * 2;
  static constexpr int kMostBoxes = region_boxes(kRows), kMostStages = 6;
  static constexpr int kOwnBoxes = kMostBoxes / kProducers;  // of a producer warp
  // dY as it lies, tokens as rows: MN-major. A block row is a part of a 128-byte row, which the swizzle does
  // not mind: it goes by address.
  static constexpr std::uint64_t kDescriptorDy =
      ptx::wgmma_descriptor(ptx::Swizzle::bytes128, 8 * kBoxSide * 2, kBoxBytes);
  static constexpr int kStoreBytes = 32 * 16 * 2;
  static_assert(kProducerRegisters + kConsumers * kConsumerRegisters <=
                (kConsumers + 1) * ptx::registers_at_launch(kThreads));
  static_assert(kMostBoxes % kProducers == 0 && kStrips % kConsumers == 0, "shared out evenly");
};

/// Consecutive stored blocks of one block row. Of a unit: its block, and which 16 columns of that, counted
/// from 1.
struct Strip {
  std::int32_t first, blocks, row;
};

/// What all warps must know of an item.
struct RegionItem {
  Part part;  // no steps: there are no more items
  Slots others;
  std::int32_t strips;                    // or units
  std::int32_t down, across;              // of the region
  std::uint32_t row_boxes, column_boxes;  // of the region, that are read: a bit each
};

/// Dynamic shared memory, from a multiple of 1024.
template <class T>
struct RegionStorage {
  std::byte ring[T::kRingBytes];  // stages: the boxes of dY, of X, each [64 tokens][64]
  std::byte staging[T::kConsumers * 4][T::kStoreBytes];
  // Of every strip and warp: where its piece of X lies in the stage, in 16 bytes; above, where the block row
  // of dY does.
  std::uint32_t places[T::kStrips][4];
  Strip strips[T::kStrips][T::kStripUnits];
  RegionItem item;
  Agenda agenda;  // of the warp that lists the strips, which has few registers
  std::uint64_t full[T::kMostStages], empty[T::kMostStages];  // mbarriers
  std::uint8_t counts[kMostCounts];                           // [block rows][across]: blocks
  std::uint8_t items[kMostRegions];                           // [down][across]
};

struct RegionParams {
  CUtensorMap dy, x;  // [m, rows], [m, cols]; boxes of 64 tokens x 64
  const std::int32_t* crow;
  const std::int32_t* col;
  void* out;  // [blocks][kRows][bn], 16-byte aligned; kAccumulate: fp32, at any address
  std::int32_t rows, cols, block_rows;
  std::int32_t steps;
  int bn_log2;
  int row_boxes, column_boxes;  // of a region
  std::int32_t down, across;
  bool ragged;
  int part_chunks;
  float4* parts;  // [grid] slots of 2 warpgroups, chunks, 4, 128 threads
  std::uint64_t* flags;
  std::uint64_t nonce;
};

}  // namespace sparseloom::kernels::cuda::wgmma_sdd
