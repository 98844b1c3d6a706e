// Compile-time side of wgmma_sdd: the shape of an item, and where its bytes lie in shared memory.
//
//   item    consecutive stored blocks of one block row, what a thread block sums at a time
//   step    64 tokens, of fp32 32: one stage of the ring, dY's block row and the columns of X under the
//   item's blocks strip   64 gathered columns of X: half a block of 128 columns, a block of 64, two blocks
//   of 32. M of wgmma; N is the block row chunk   a strip's sums of 32 rows of dY: 16 registers of each
//   thread of a warpgroup
//
// X is on M because wgmma takes its 64 rows from two places (leading_bytes apart), so that any two blocks of
// 32 make a full one; block rows of 32 on M would leave half of each wgmma empty.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/ptx/sm90/registers.cuh"
#include "kernels/cuda/sm90/wgmma_sdd_deal.h"
#include "kernels/cuda/sm90/wgmma_sdd_element.cuh"

namespace sparseloom::kernels::cuda::wgmma_sdd {

/// kRows: of a block. kBoxColumns: columns of X that one copy brings, 32 for blocks of 32 columns, else 64.
/// kAccumulate: out is fp32 and added to; by a branch at run time the other kernel lost up to 12 %.
template <class Element_, int kRows_, int kBoxColumns_, bool kAccumulate_>
struct Tile {
  using Element = Element_;
  static constexpr int kRows = kRows_, kBoxColumns = kBoxColumns_;
  static constexpr bool kAccumulate = kAccumulate_;
  static constexpr StepShape kStep = Element::kStep;

  // Two warpgroups multiply, each every other strip; the four warps of the third start the copies: one warp
  // alone starts 13 million boxes of 4 KB a second, 7 TB/s on all multiprocessors.
  static constexpr int kConsumers = 2, kProducers = 4, kThreads = (kConsumers + 1) * 128;
  static constexpr int kProducerRegisters = 56, kConsumerRegisters = 224;

  // A swizzled box is at most 128 bytes wide.
  static constexpr int kDyBoxColumns = kRows < 64 ? kRows : 64, kDyBoxes = kRows / kDyBoxColumns;
  static constexpr int kDyBoxBytes = kDyBoxColumns * kStep.column_bytes, kDyBytes = kDyBoxes * kDyBoxBytes;
  static constexpr int kXBoxBytes = kBoxColumns * kStep.column_bytes;
  static constexpr int kStripBytes = kStripColumns * kStep.column_bytes;
  static constexpr int kStepRows = kStep.tokens * Element::kPlanes;  // from a step to the next, as TMA counts

  // Two stages of the largest item there can be, more where a launch has smaller ones.
  static constexpr int kMostStages = 8;
  static __host__ __device__ constexpr int stage_bytes(int strips) { return kDyBytes + strips * kStripBytes; }
  static constexpr int kStrips = most_strips(kStep, kRows), kWarpgroupStrips = (kStrips + 1) / 2;
  static constexpr int kStripSums = kRows / 2, kStripChunks = kRows / 32, kChunks = chunks_of(kRows, kStrips);
  static constexpr int kOwnBoxes =
      (kStrips * (kStripColumns / kBoxColumns) + kProducers - 1) / kProducers;  // of a producer warp

  static constexpr int kDyKBytes = Element::k_bytes(kDyBoxColumns), kXKBytes = Element::k_bytes(kBoxColumns);
  static constexpr int kDyPlaneBytes = kDyBoxBytes / Element::kPlanes,
                       kXPlaneBytes = kXBoxBytes / Element::kPlanes;
  static constexpr std::uint64_t kDescriptorDy = Element::descriptor(kDyBoxColumns, kDyBoxBytes);
  static constexpr std::uint64_t kDescriptorX = Element::descriptor(kBoxColumns, kXBoxBytes);

  // Sums leave by a warp's 16 columns x 32 rows.
  static constexpr int kStoreBytes = 32 * 16 * 2;

  static_assert(2 * (kDyBytes + kStrips * kStripBytes) <= kRingBytes,
                "the producer fills one stage while another is used");
  static_assert(kProducerRegisters + kConsumers * kConsumerRegisters <=
                (kConsumers + 1) * ptx::registers_at_launch(kThreads));
  static_assert(kDyBoxBytes % 1024 == 0 && kXBoxBytes % 1024 == 0,
                "swizzled boxes start at multiples of 1024");
};

/// What a consumer must know of a part, left by the producer beside its first stage.
struct Record {
  std::int32_t row, first, blocks;  // blocks == 0: there are no more items
  std::int32_t steps;
  std::int32_t slot;  // where the sums are left; -1: they are stored, with those of
  Slots others;
};

/// Dynamic shared memory, from a multiple of 1024.
template <class T>
struct SharedStorage {
  std::byte ring[kRingBytes];  // Params::stages of stage_bytes: boxes of dY, boxes of X
  std::byte staging[T::kConsumers * 4][T::kStoreBytes];
  std::uint64_t full[T::kMostStages], empty[T::kMostStages];  // mbarriers
  Record records[T::kMostStages];
};

struct Params {
  CUtensorMap dy, x;         // as Element wants them; boxes of a step
  const std::int32_t* crow;  // [block_rows + 1]
  const std::int32_t* col;   // [blocks]
  void* out;                 // [blocks][kRows][bn], 16-byte aligned; fp32 at any address
  std::int32_t rows, cols, block_rows;
  std::int32_t steps;
  int bn_log2;
  int most_blocks;          // of an item
  int stage_bytes, stages;  // for that many
  int part_chunks;          // of a warpgroup in a slot
  float4* parts;            // [grid] slots of 2 warpgroups, chunks, 4, 128 threads
  std::uint64_t* flags;
  std::uint64_t nonce;
  bool ragged;  // some blocks reach beyond the last row or column
};

}  // namespace sparseloom::kernels::cuda::wgmma_sdd
