// The compile-time side of sm90_mma: the shape of a tile, and the layout of shared memory.
//
//   block row   A block row of W (forward) or a block column of W (dx): 16 outputs.
//   K tile      64 consecutive positions of the reduction, four blocks wide: 128 bytes of a token, which TMA
//               and L2 move at full rate. The four blocks are its `places`.
//   subset      The block rows of a tile whose blocks of a K tile fill one stage: nearly always all of them.
//   slot        512 bytes of a stage that hold one block as it is stored, except that rows 4 to 7 and 12 to
//               15 have their halves exchanged. So neither ldmatrix nor the copies, which fill 128 bytes at a
//               time, have bank conflicts (with the halves in separate planes, the copies took 32 cycles
//               instead of 4). Blocks lie in the order of the warps that multiply them; those of a warp lie
//               in the order of the reduction, then of its block rows.
//   byte        A mask of the places that one block row stores in a K tile: bits 0, 2, 4, 6 for the first
//               block row of a consumer warp, bits 1, 3, 5, 7 for the second.
//
// The registers hold 32768 sums, and of the shapes with so many, 512 outputs x 64 tokens reads least from L2.
// All of X is read once for each 512 outputs (537 MB for 8192 x 4096 x 4096), since 32 block rows leave no K
// tile empty at the densities that matter, and all values once for each 64 tokens (215 MB at density .05).
// 256 outputs x 128 tokens would read as much, but in amounts that depend on the pattern.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/bsr_linear/sm80/mma/forward/tile.cuh"
#include "kernels/bsr_linear/sm90/mma/ring.h"
#include "kernels/shared/ptx/l2_policy.cuh"
#include "kernels/shared/ptx/sm90/registers.cuh"
#include "sparseloom/activation.h"

namespace sparseloom::kernels::cuda::sm90_mma {

using mma::forward::Bf16, mma::forward::F16;

// Tags of the direction. In Forward, a "block row" is a block row of W, and the reduction runs along the in
// features; in Dx, it is a block column of W, and the reduction runs along the out features.
struct Forward {
  static constexpr bool kIsDx = false;
};
struct Dx {
  static constexpr bool kIsDx = true;
};

/// There are 16 consumer warps of two block rows each: with few blocks in a K tile a warp mostly waits, and
/// three others of its scheduler hide that. Eight warps of four block rows would read X .8 times as often
/// from shared memory at density .2.
template <class Direction, class Element_>
struct Tile {
  using Element = Element_;
  static constexpr bool kIsDx = Direction::kIsDx;
  static constexpr int kTokens = kTileTokens, kBlockRows = kTileBlockRows, kOutputs = kTileOutputs;
  static constexpr int kConsumers = sm90_mma::kConsumers, kWarpBlockRows = kBlockRows / kConsumers,
                       kProducers = sm90_mma::kProducers;
  static constexpr int kThreads = (kConsumers + kProducers) * 32;
  static constexpr int kProducerRegisters = 64, kConsumerRegisters = 104;

  static constexpr int kKTile = sm90_mma::kKTile, kPlaces = sm90_mma::kPlaces;
  static constexpr int kXBytes = sm90_mma::kXBytes, kSlotBytes = sm90_mma::kSlotBytes;
  static constexpr int kMostStages = sm90_mma::kMostStages, kMostSlots = sm90_mma::kMostSlots;
  // Bit fields of a consumer warp's stage descriptor: the bytes of its two block rows joined (kStored),
  // whether this is the tile's last stage (kLast), and the offset in bytes of the warp's first slot (kSlots).
  // From bit kNextShift on, it holds kStored and kLast of the tile's next stage, so that the warp need not
  // wait for them.
  static constexpr std::uint32_t kStored = 0xff, kLast = 0x100, kSlots = 0x1fe00;
  static constexpr int kNextShift = 18;

  // Each warp stores boxes of its own: 32 tokens x 32 outputs.
  static constexpr int kStoreTokens = 32, kStoreColumns = kWarpBlockRows * kSide,
                       kStoreRowBytes = kStoreColumns * 2;
  static constexpr int kStoreBytes = kStoreTokens * kStoreRowBytes;

  static_assert(kMostSlots * kSlotBytes <= kSlots && kSlots % kSlotBytes == 0);
  static_assert(kBlockRows == 32 && kWarpBlockRows == 2 && kPlaces == 4,
                "each block row has a lane of a producer; a K tile of two block rows has one byte");
  static_assert(kConsumers % 4 == 0 && kProducers == 4, "setmaxnreg applies to whole warpgroups");
  static_assert((kProducerRegisters * kProducers + kConsumerRegisters * kConsumers) * 32 <=
                kThreads * ptx::registers_at_launch(kThreads));
  static_assert(kStoreRowBytes == 64 && kTokens % kStoreTokens == 0);
};

/// The control data of a stage: its barriers, and a stage descriptor per consumer warp.
template <class T>
struct Stage {
  std::uint64_t full, empty;  // mbarriers
  std::uint32_t record[T::kConsumers];
};

/// The front of dynamic shared memory, which begins at a multiple of 1024. It is followed by the ring, whose
/// stages hold X [kTokens][kKTile] and `slots` blocks each, and the table (table.cuh).
template <class T>
struct SharedFront {
  std::byte staging[T::kConsumers][T::kStoreBytes];
  std::uint32_t blocks[T::kProducers]
                      [T::kMostSlots];  // slots in values of the blocks of the stage being filled
  Stage<T> stage[T::kMostStages];
  std::uint64_t residual[T::kConsumers];  // mbarriers: the residual has landed in a warp's staging
};

template <class T>
inline constexpr int kFrontBytes = (sizeof(SharedFront<T>) + 1023) / 1024 * 1024;
static_assert(kFrontBytes<Tile<Forward, Bf16>> == kRingBegin, "ring.h has the ring's offset as a constant");

struct Params {
  CUtensorMap x;                   // [m, width]: x or dy; boxes of kTokens x kKTile
  CUtensorMap out;                 // [m, out_width]; boxes of kStoreTokens x kStoreColumns
  CUtensorMap pre;                 // with store_pre: out's shape, before the activation
  CUtensorMap residual;            // with add_residual: out's shape
  const std::int32_t* list_begin;  // crow or ccol, [block rows]
  const std::int32_t* list_end;    // [block rows]
  const std::int32_t* along;       // col or row, [blocks]
  const std::int32_t* slot;        // dx only: index among values, [blocks]
  const std::byte* values;         // [blocks, 16, 16]
  const void* bias;                // [out_width] or null
  std::int32_t block_rows, out_width, k_tiles;
  unsigned tiles, groups;  // see Tiles
  bool rotated;            // see Tiles
  int stages, slots;       // stages of the ring, slots of a stage (an even number)
  Activation activation;
  bool store_pre, add_residual;
  ptx::L2Policy x_policy, out_policy;
};

}  // namespace sparseloom::kernels::cuda::sm90_mma
