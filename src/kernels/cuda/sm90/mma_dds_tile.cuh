// Compile-time side of mma_dds: the shape of a tile, and where its bytes lie in shared memory.
//
//   line    block row of W (forward) or block column (dx): 16 outputs
//   slab    64 consecutive positions of the reduction, four blocks wide: 128 bytes of a token, which TMA and
//   L2 move at full rate part    of a tile's lines, those whose blocks of a slab fill a stage: nearly always
//   all of them slot    512 bytes of a stage that hold one block as it is stored, but for rows 4 to 7 and 12
//   to 15, whose halves are
//           exchanged: so ldmatrix meets no bank twice, and the copies, which fill 128 bytes at a time,
//           neither (halves that lay apart took them 32 turns for 4). Blocks lie in the order of the warps
//           that multiply them, of a warp's along the reduction, then of its lines.
//   byte    which of a slab's four places one line stores, as bits 0, 2, 4, 6, or for the second line of a
//   warp 1, 3, 5, 7
//
// 512 outputs x 64 tokens: of 32768 sums, which is what the registers hold, the shape that reads least from
// L2. X is read whole, by 512 outputs at a time (537 MB for 8192 x 4096 x 4096), since 32 lines leave no slab
// empty at the densities that matter, and values by every 64 tokens (215 MB at density .05). 256 outputs x
// 128 tokens would read as much, in pieces that depend on the pattern.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/ptx/l2_policy.cuh"
#include "kernels/cuda/ptx/sm90/registers.cuh"
#include "kernels/cuda/sm80/dds_tile.cuh"
#include "kernels/cuda/sm90/mma_dds.h"
#include "sparseloom/plan.h"

namespace sparseloom::kernels::cuda::mma_dds {

using dds::Bf16, dds::F16;

// Tags. Forward: lines are block rows, the reduction runs along in features. Dx: lines are block columns,
// along out features.
struct Forward {
  static constexpr bool kIsDx = false;
};
struct Dx {
  static constexpr bool kIsDx = true;
};

/// 16 warps of two lines each: with few blocks in a slab a warp mostly waits, beside three others of its
/// scheduler. Eight of four would read X .8 times as often at density .2.
template <class Direction, class Element_>
struct Tile {
  using Element = Element_;
  static constexpr bool kIsDx = Direction::kIsDx;
  static constexpr int kTokens = kTileTokens, kLines = kTileLines, kOutputs = kTileOutputs;
  static constexpr int kWarpLines = 2, kConsumers = kLines / kWarpLines, kProducers = 4;
  static constexpr int kThreads = (kConsumers + kProducers) * 32;
  static constexpr int kProducerRegisters = 64, kConsumerRegisters = 104;

  static constexpr int kSlab = mma_dds::kSlab, kPlaces = kSlab / kSide;
  static constexpr int kXBytes = kTokens * kSlab * 2, kSlotBytes = kSide * kSide * 2;
  static constexpr int kMostStages = 16, kMostSlots = kPlaces * kLines;
  /// Slots that any stage has: for all that two lines can store in a slab.
  static constexpr int kLeastSlots = kWarpLines * kPlaces;
  // A warp's record of a stage: its lines' bytes together, whether the tile ends here, the bytes of the slots
  // before its own; and the first two of the tile's next stage, for which then nobody waits.
  static constexpr std::uint32_t kStored = 0xff, kLast = 0x100, kSlots = 0x1fe00;
  static constexpr int kNextShift = 18;

  // Outputs leave by boxes of one warp: 32 tokens x 32 outputs.
  static constexpr int kStoreTokens = 32, kStoreColumns = kWarpLines * kSide,
                       kStoreRowBytes = kStoreColumns * 2;
  static constexpr int kStoreBytes = kStoreTokens * kStoreRowBytes;

  static_assert(kMostSlots * kSlotBytes <= kSlots && kSlots % kSlotBytes == 0);
  static_assert(kLines == 32 && kWarpLines == 2 && kPlaces == 4,
                "a lane of a producer each; a byte for two lines in a slab");
  static_assert(kConsumers % 4 == 0 && kProducers == 4, "whole warpgroups trade registers");
  static_assert((kProducerRegisters * kProducers + kConsumerRegisters * kConsumers) * 32 <=
                kThreads * ptx::registers_at_launch(kThreads));
  static_assert(kStoreRowBytes == 64 && kTokens % kStoreTokens == 0);
};

template <class T>
struct Stage {
  std::uint64_t full, empty;  // mbarriers
  std::uint32_t record[T::kConsumers];
};

/// Words of the table: the bytes of each line in four slabs, the consumers' records of a slab, and the
/// producers' counts.
template <class T>
constexpr int table_words(int slabs) {
  return (slabs + 3) / 4 * T::kLines + slabs * T::kConsumers + T::kProducers;
}

/// The front of dynamic shared memory, from a multiple of 1024. Behind it: the ring, `stages` times X
/// [kTokens][kSlab] and `slots` blocks; and the table (mma_dds_table.cuh).
template <class T>
struct SharedFront {
  std::byte staging[T::kConsumers][T::kStoreBytes];
  std::uint32_t blocks[T::kProducers][T::kMostSlots];  // of a stage under way: which of the values
  Stage<T> stage[T::kMostStages];
  std::uint64_t residual[T::kConsumers];  // for what comes of it to a warp's staging
};

template <class T>
inline constexpr int kFrontBytes = (sizeof(SharedFront<T>) + 1023) / 1024 * 1024;

struct Params {
  CUtensorMap x;                   // [m, width]: x or dy; boxes of kTokens x kSlab
  CUtensorMap out;                 // [m, out_width]; boxes of kStoreTokens x kStoreColumns
  CUtensorMap pre;                 // with store_pre: the same, before the activation
  CUtensorMap residual;            // with add_residual: as out
  const std::int32_t* list_begin;  // crow or ccol, [lines]
  const std::int32_t* list_end;    // [lines]
  const std::int32_t* along;       // col or row, [blocks]
  const std::int32_t* slot;        // dx only, [blocks]
  const std::byte* values;         // [blocks, 16, 16]
  const void* bias;                // [out_width] or null
  std::int32_t lines, out_width, slabs;
  unsigned tiles, groups;  // see Tiles
  bool turned;
  int stages, slots;  // of the ring; even
  Activation activation;
  bool store_pre, add_residual;
  ptx::L2Policy x_policy, out_policy;
};

}  // namespace sparseloom::kernels::cuda::mma_dds
