// The compile-time side of wgmma::dw: the shape of a work item, and the layout of shared memory.
//
//   item     Consecutive stored blocks of one block row, which a thread block sums at a time.
//   segment  The range of an item's tokens that one thread block sums: all of them, or a part (split-K).
//   step     64 tokens (32 of fp32), which are one stage of the ring: dY's block row, and the columns of X
//            under the item's blocks.
//   strip    64 gathered columns of X: half a block of 128 columns, a block of 64, or two blocks of 32. They
//            are M of wgmma; N is the rows of the block row.
//   chunk    A strip's sums of 32 rows of the block row: 16 registers of each thread of a warpgroup.
//
// X is on M because wgmma takes its 64 rows from two addresses (leading_bytes apart), so any two blocks of 32
// fill one wgmma; block rows of 32 on M would leave half of each wgmma empty.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/bsr_linear/sm90/wgmma/dw/deal.h"
#include "kernels/bsr_linear/sm90/wgmma/dw/element.cuh"
#include "kernels/shared/ptx/sm90/registers.cuh"

namespace sparseloom::kernels::cuda::wgmma::dw {

/// kRows: the rows of a block. kBoxColumns: the columns of X per copy, 32 for blocks of 32 columns and
/// otherwise 64. With kAccumulate, the result is added to out, in fp32; a branch at run time measured slower
/// for plain stores.
template <class Element_, int kRows_, int kBoxColumns_, bool kAccumulate_>
struct Tile {
  using Element = Element_;
  static constexpr int kRows = kRows_, kBoxColumns = kBoxColumns_;
  static constexpr bool kAccumulate = kAccumulate_;
  static constexpr StepShape kStep = Element::kStep;

  // Two warpgroups multiply every other strip each; the four warps of the third issue the copies. A single
  // warp measured too slow at issuing boxes of 4 KB.
  static constexpr int kConsumers = 2, kProducers = 4, kThreads = (kConsumers + 1) * 128;
  static constexpr int kProducerRegisters = 56, kConsumerRegisters = 224;

  // A swizzled box is at most 128 bytes wide.
  static constexpr int kDyBoxColumns = kRows < 64 ? kRows : 64, kDyBoxes = kRows / kDyBoxColumns;
  static constexpr int kDyBoxBytes = kDyBoxColumns * kStep.column_bytes, kDyBytes = kDyBoxes * kDyBoxBytes;
  static constexpr int kXBoxBytes = kBoxColumns * kStep.column_bytes;
  static constexpr int kStripBytes = kStripColumns * kStep.column_bytes;
  static constexpr int kStepRows = kStep.tokens * Element::kPlanes;  // rows of the tensor map per step

  // The ring holds two stages of the largest possible item, and more if a launch has smaller items.
  static constexpr int kMostStages = 8;
  static __host__ __device__ constexpr int stage_bytes(int strips) { return kDyBytes + strips * kStripBytes; }
  static constexpr int kStrips = most_strips(kStep, kRows), kWarpgroupStrips = (kStrips + 1) / 2;
  static constexpr int kStripSums = kRows / 2, kStripChunks = kRows / 32, kChunks = chunks_of(kRows, kStrips);
  static constexpr int kOwnBoxes =
      (kStrips * (kStripColumns / kBoxColumns) + kProducers - 1) / kProducers;  // most boxes of a producer

  static constexpr int kDyKBytes = Element::k_bytes(kDyBoxColumns), kXKBytes = Element::k_bytes(kBoxColumns);
  static constexpr int kDyPlaneBytes = kDyBoxBytes / Element::kPlanes,
                       kXPlaneBytes = kXBoxBytes / Element::kPlanes;
  static constexpr std::uint64_t kDescriptorDy = Element::descriptor(kDyBoxColumns, kDyBoxBytes);
  static constexpr std::uint64_t kDescriptorX = Element::descriptor(kBoxColumns, kXBoxBytes);

  // A warp stores 16 columns x 32 rows of 16-bit sums at a time.
  static constexpr int kStoreBytes = 32 * 16 * 2;

  static_assert(2 * (kDyBytes + kStrips * kStripBytes) <= kRingBytes,
                "the producer fills one stage while another is used");
  static_assert(kProducerRegisters + kConsumers * kConsumerRegisters <=
                (kConsumers + 1) * ptx::registers_at_launch(kThreads));
  static_assert(kDyBoxBytes % 1024 == 0 && kXBoxBytes % 1024 == 0,
                "swizzled boxes start at multiples of 1024");
};

/// Describes a segment to the consumers; the producer writes it beside the segment's first stage.
struct Record {
  std::int32_t row, first, blocks;  // blocks == 0: there are no more items
  std::int32_t steps;
  std::int32_t slot;  // for the sums; -1: they are stored, after adding those in `others`
  Slots others;
};

/// Dynamic shared memory, which begins at a multiple of 1024.
template <class T>
struct SharedStorage {
  std::byte ring[kRingBytes];  // Params::stages of stage_bytes: boxes of dY, boxes of X
  std::byte staging[T::kConsumers * 4][T::kStoreBytes];
  std::uint64_t full[T::kMostStages], empty[T::kMostStages];  // mbarriers
  Record records[T::kMostStages];
};

struct Params {
  CUtensorMap dy, x;         // in Element's layout; boxes of a step
  const std::int32_t* crow;  // [block_rows + 1]
  const std::int32_t* col;   // [blocks]
  void* out;                 // [blocks][kRows][bn], 16-byte aligned; fp32 at any address
  std::int32_t rows, cols, block_rows;
  std::int32_t steps;
  int bn_log2;
  int most_blocks;          // most blocks of an item
  int stage_bytes, stages;  // of the ring, for items of most_blocks blocks
  int part_chunks;          // chunks per warpgroup in a slot
  float4* parts;            // [grid] slots of 2 warpgroups, chunks, 4, 128 threads
  std::uint64_t* flags;
  std::uint64_t nonce;
  bool ragged;  // some blocks reach beyond the last row or column
};

// What block search and stores need of their Params beside its members. A convolution overloads these: its
// blocks are those of W under one tap (bsr_conv/sm90/dw_wgmma).
__device__ __forceinline__ std::int32_t list_begin(const Params& params, std::int32_t row) {
  return __ldg(params.crow + row);
}
__device__ __forceinline__ std::int32_t block_column(const Params& params, std::int32_t block) {
  return __ldg(params.col + block);
}

}  // namespace sparseloom::kernels::cuda::wgmma::dw
