// The compile-time side of wgmma/dw_regions: the terms, the constants, and the layout of shared memory.
//
//   region   Some block rows by some block columns. Each of its 64-wide boxes that stored blocks touch
//            is read once.
//   strip    Up to four 16-column fragments of X, under consecutive stored blocks of one block row,
//            times that block row of dY: one wgmma. Its M is the fragments, which may lie anywhere, since
//            each warp reads its own; its N is the rows of the block row. X comes through registers because
//            fragments are 16 columns wide: from shared memory wgmma takes 64 columns side by side, or twice
//            32 in 64-byte rows.
//   unit     With block rows of 16: 16 x 16 of a stored block, two mma.sync for each 16 tokens. A strip then
//            is four units, and each unit is a single warp's.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/bsr_linear/sm90/wgmma/dw_regions/entry.h"
#include "kernels/shared/ptx/convert.cuh"
#include "kernels/shared/ptx/mma.cuh"
#include "kernels/shared/ptx/sm90/registers.cuh"
#include "kernels/shared/ptx/sm90/wgmma_rs.cuh"

namespace sparseloom::kernels::cuda::wgmma::dw {

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
  static constexpr int kRows = kRows_, kStripSums = kRows / 2;  // rows of a block; sums per thread
  static constexpr int kConsumers = 2, kProducers = 4, kThreads = (kConsumers + 1) * 128;
  static constexpr int kProducerRegisters = kRows == 16 ? 72 : 56,
                       kConsumerRegisters = kRows == 16 ? 216 : 224;
  static constexpr int kStrips = region_strips(kRows), kWarpgroupStrips = kStrips / kConsumers;
  static constexpr int kChunks = kWarpgroupStrips * kStripSums / 16;  // of 16 sums: one or two strips
  // With block rows of 16, each warp multiplies 16 x 16 units of its own by mma.sync, and a strip is any four
  // of them.
  static constexpr bool kUnits = kRows == 16;
  static constexpr int kStripUnits = kUnits ? 4 : 1,
                       kRoom = kStrips * kStripUnits;  // of an item: units, or strips
  static constexpr int kStageTokens = region_stage_tokens(kRows),
                       kStagesOfStep = kStep16.tokens / kStageTokens;
  static constexpr int kBoxBytes = kStageTokens * kBoxSide * 2,
                       kRingBytes = 2 * region_boxes(32) * kStep16.tokens * kBoxSide * 2;
  static constexpr int kMostBoxes = region_boxes(kRows), kMostStages = 6;
  static constexpr int kOwnBoxes = kMostBoxes / kProducers;  // most boxes of a producer warp
  // dY as TMA wrote it, with tokens as rows: MN-major. A block row takes some of each 128-byte row, which is
  // possible since the swizzle depends on the address only.
  static constexpr std::uint64_t kDescriptorDy =
      ptx::wgmma_descriptor(ptx::Swizzle::bytes128, 8 * kBoxSide * 2, kBoxBytes);
  static constexpr int kStoreBytes = 32 * 16 * 2;
  static_assert(kProducerRegisters + kConsumers * kConsumerRegisters <=
                (kConsumers + 1) * ptx::registers_at_launch(kThreads));
  static_assert(kMostBoxes % kProducers == 0 && kStrips % kConsumers == 0,
                "boxes and strips are divided evenly among producers and consumers");
};

/// A strip: consecutive stored blocks of one block row. For a unit, `first` is its block, and `blocks` says
/// which 16 columns of it, counted from 1.
struct Strip {
  std::int32_t first, blocks, row;
};

/// What all warps know of an item.
struct RegionItem {
  Part part;  // segment of the item; steps == 0: there are no more items
  Slots others;
  std::int32_t strips;                    // or units, in the item
  std::int32_t down, across;              // coordinates of the region in the grid of regions
  std::uint32_t row_boxes, column_boxes;  // bit masks of the region's boxes that are read
};

/// Dynamic shared memory, which begins at a multiple of 1024.
template <class T>
struct RegionStorage {
  std::byte ring[T::kRingBytes];  // stages of boxes of dY, then of X, each [kStageTokens][64]
  std::byte staging[T::kConsumers * 4][T::kStoreBytes];
  // For every strip and warp, offsets in a stage in units of 16 bytes: the lower half for its fragment of X,
  // the upper half for the block row of dY.
  std::uint32_t places[T::kStrips][4];
  Strip strips[T::kStrips][T::kStripUnits];
  RegionItem item;
  Agenda agenda;  // of the warp that lists the strips, which lacks registers for it
  std::uint64_t full[T::kMostStages], empty[T::kMostStages];  // mbarriers
  std::uint8_t counts[kMostCounts];                           // [block rows][across]: stored blocks
  std::uint8_t items[kMostRegions];                           // [down][across]: items
};

struct RegionParams {
  CUtensorMap dy, x;  // [m, rows], [m, cols]; boxes of kStageTokens x 64
  const std::int32_t* crow;
  const std::int32_t* col;
  void* out;  // [blocks][kRows][bn], 16-byte aligned; kAccumulate: fp32, at any address
  std::int32_t rows, cols, block_rows;
  std::int32_t steps;
  int bn_log2;
  int row_boxes, column_boxes;  // of a region
  std::int32_t down, across;    // regions of the matrix
  bool ragged;
  int part_chunks;  // chunks per warpgroup in a slot
  float4* parts;    // [grid] slots of 2 warpgroups, chunks, 4, 128 threads
  std::uint64_t* flags;
  std::uint64_t nonce;
};

}  // namespace sparseloom::kernels::cuda::wgmma::dw
