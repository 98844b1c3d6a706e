// Compile-time side of wgmma_dds: the shape of a tile, and where its bytes lie in shared memory.
//
//   line    block row of W (forward) or block column (dx); its blocks' places along the reduction are a
//   sorted list slab    consecutive positions of the reduction, 64 of a 16-bit type, from a multiple of their
//   number: 128 bytes, which TMA and
//           L2 move at full rate (rows of 64 bytes reach 85 %, of 32 bytes 45 % of that)
//   part    what one line stores in a slab: a block or its share of 128 bytes, or up to two blocks of 64
//   bytes slice   a line's columns of the tile: N of its wgmma, or M
//
// Tokens lie on M of wgmma and a slice on N, each warpgroup with half of the tokens; or, where kTurned, 64
// outputs of a warpgroup's own on M and all 256 tokens on N: fewer and larger wgmma, one test for what is
// present, no line to pass over. Of slices of 32 that would multiply what is not stored; sums added up in
// registers have no room for it, and outputs of fp32 would leave by boxes of twice the size.
//
// Blocks of 64 e4m3 are slabs of 64 bytes, and a stage holds any two of them: at the densities that matter,
// rows at 85 % of the rate beat reading X under the absent neighbours, and two to a stage halve the
// consumers' latency.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <bit>
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/ptx/l2_policy.cuh"
#include "kernels/cuda/ptx/sm90/registers.cuh"
#include "kernels/cuda/ptx/sm90/wgmma.cuh"
#include "kernels/cuda/sm90/wgmma_dds.h"
#include "kernels/cuda/sm90/wgmma_dds_element.cuh"
#include "plan/line_order.h"
#include "sparseloom/plan.h"

namespace sparseloom::kernels::cuda::wgmma_dds {

// Tags. Forward: lines are block rows, the reduction runs along in features. Dx: lines are block columns,
// along out features. ForwardPlus: forward and a residual, whose branches in the epilogue cost the kernel
// without one up to a quarter. ForwardActivated: forward and what the tiles whose plain kernel stores late
// leave out: an activation, a scale for each token. ForwardFinished: forward, its sums and an activation of
// them (kFinishable, wgmma_dds_finish.cuh).
struct Forward {
  static constexpr bool kIsDx = false, kAddsResidual = false, kActivates = false, kFinishes = false;
};
struct ForwardActivated {
  static constexpr bool kIsDx = false, kAddsResidual = false, kActivates = true, kFinishes = false;
};
struct ForwardFinished {
  static constexpr bool kIsDx = false, kAddsResidual = false, kActivates = true, kFinishes = true;
};
struct ForwardPlus {
  static constexpr bool kIsDx = false, kAddsResidual = true, kActivates = true, kFinishes = false;
};
struct Dx {
  static constexpr bool kIsDx = true, kAddsResidual = false, kActivates = false, kFinishes = false;
};

/// 256 tokens beat 128 tokens x 256 outputs by up to 17 %: fewer lines to test per slab, and each has twice
/// the tensor work to hide the slab's latency behind. Four stages of 48 KB: three lost up to 4 % at block
/// 128.
struct Wide {
  static constexpr int kTokens = kWideTile.tokens, kOutputs = kWideTile.outputs, kStages = 4,
                       kStagingBuffers = 2, kBlocksPerSm = 1;
  static constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;
};
/// The same with finishers: what one stage takes is where the rounded sums of a tile wait for them.
struct WideFinished {
  static constexpr int kTokens = kWideTile.tokens, kOutputs = kWideTile.outputs, kStages = 3,
                       kStagingBuffers = 1, kBlocksPerSm = 1;
  static constexpr int kProducerRegisters = 64, kConsumerRegisters = 192;  // the finishers' too
};
/// For products with few tiles: a quarter of the outputs, two thread blocks to a multiprocessor.
struct Narrow {
  static constexpr int kTokens = kNarrowTile.tokens, kOutputs = kNarrowTile.outputs, kStages = 4,
                       kStagingBuffers = 1, kBlocksPerSm = 2;
  static constexpr int kProducerRegisters = 0, kConsumerRegisters = 0;  // as launched: 32 sums leave room
};

/// Half of the tokens, so that the partial sums of each slab and x's three parts have registers. Values are
/// six bytes each and X four: 27 bytes a clock at the tensor cores' rate.
struct HalfWide {
  static constexpr int kTokens = kSplitTile.tokens, kOutputs = kSplitTile.outputs, kStages = 4,
                       kStagingBuffers = 2, kBlocksPerSm = 1;
  static constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;
};

/// For products with few tiles: half of the outputs, and stages enough for as many bytes under way.
struct HalfNarrow {
  static constexpr int kTokens = kNarrowSplitTile.tokens, kOutputs = kNarrowSplitTile.outputs, kStages = 6,
                       kStagingBuffers = 2, kBlocksPerSm = 1;
  static constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;
};

constexpr ptx::Swizzle swizzle_of(int row_bytes) {
  return row_bytes == 128 ? ptx::Swizzle::bytes128 : ptx::Swizzle::bytes64;
}

template <class Direction, class Element_, class Shape, int kSlice_, int kPart_>
struct Tile : Shape {
  using Element = Element_;
  using Shape::kOutputs, Shape::kStages, Shape::kTokens;
  static constexpr bool kTurned = kTokens == 256 && kSlice_ >= 64 && Element::kBytes <= 2 &&
                                  !Element::kPromoted && size_of(Element::Out::kDtype) == 2;
  static constexpr bool kIsDx = Direction::kIsDx;
  static constexpr bool kAddsResidual = Direction::kAddsResidual, kFinishes = Direction::kFinishes;
  // Rounded sums leave beside the next tile's first products: 2 to 5 %. An activation does not: with half of
  // the registers taken, few of them are under way at a time. Nor do the scales of 256 tokens: by registers
  // they spill, by shared memory they cost fp8 1 to 7 %, what is won.
  static constexpr bool kStoresLate = kTurned && !Direction::kActivates;
  // For gradients, which 8-bit products lack: the sums beside the output, by finishers where there are any.
  static constexpr bool kFinishable = kTokens == kWideTile.tokens && !kIsDx && !kAddsResidual &&
                                      !Element::kScaled && size_of(Element::Out::kDtype) == 2;
  static constexpr bool kStoresPre = !kIsDx && !Element::kScaled && !kFinishable;
  static constexpr int kSlice = kSlice_, kPart = kPart_;
  static constexpr int kSlabs = Element::kNarrowSlabs && kPart * Element::kBytes == 64 ? 2 : 1;  // of a stage
  static constexpr int kRowBytes = 128 / kSlabs, kSlab = kRowBytes / Element::kBytes;
  static constexpr int kSlabLog2 = std::countr_zero(static_cast<unsigned>(kSlab));
  static constexpr int kLines = kOutputs / kSlice,
                       kParts = kSlab / kPart;         // of a slab: lines, and parts of each line
  static constexpr int kStageParts = kSlabs * kParts;  // of a line

  // Two warpgroups multiply, each for half of the tokens; of the third, warps start the copies, each a stage
  // of its own. kFinishes: whoever is left there, and a fourth, finish.
  static constexpr int kConsumers = 2, kHelpers = kFinishes ? 2 : 1, kThreads = (kConsumers + kHelpers) * 128;
  static constexpr int kTokenBlocks = kTurned ? 1 : kTokens / kConsumers / 64;  // of a warpgroup: M of wgmma
  static constexpr int kProducers = kFinishes          ? kStages
                                    : kStages % 4 == 0 ? 4
                                                       : 2,
                       kFinishers = kHelpers * 4 - kProducers;
  // Two wgmma of 128 tokens in place of one of 256, for which ptxas wants more registers than each of 512
  // threads begins with.
  static constexpr int kTokenHalves = kTurned && kFinishes ? 2 : 1;
  // Wgmma of 32 outputs reads x longer than it multiplies; from registers it runs at full rate: 8 % at
  // density .2, 14 % at .5.
  static constexpr bool kXInRegisters = kSlice == 32 && kTokenBlocks == 2 && Element::kBytes == 2;

  static constexpr int kSlabBytes = kTokens * kRowBytes, kXBytes = kSlabs * kSlabBytes;
  static constexpr int kPartBytes = kSlice * kPart * Element::kValueBytes;
  static constexpr int kStageBytes = kXBytes + kLines * kStageParts * kPartBytes;

  // A part lies as in values: forward [kSlice][kPart], K-major; dx [kPart][kSlice], MN-major. A swizzled box
  // is at most 128 bytes wide, so a slice of 128 columns is two boxes.
  static constexpr int kBoxColumns = kIsDx ? (kSlice < 64 ? kSlice : 64) : kPart,
                       kBoxRows = kIsDx ? kPart : kSlice;
  static constexpr int kBoxes = kIsDx ? kSlice / kBoxColumns : 1,
                       kBoxRowBytes = kBoxColumns * Element::kBytes;
  static constexpr int kBoxBytes = kBoxRowBytes * kBoxRows;
  static constexpr int kSteps = kPart * Element::kBytes / 32;        // wgmma of a part
  static constexpr int kStepBytes = kIsDx ? 16 * kBoxRowBytes : 32;  // from one to the next
  static constexpr std::uint64_t kDescriptorX =
      ptx::wgmma_descriptor(swizzle_of(kRowBytes), 8 * kRowBytes, 16);
  static constexpr std::uint64_t kDescriptorPart =
      ptx::wgmma_descriptor(swizzle_of(kBoxRowBytes), 8 * kBoxRowBytes, kIsDx ? kBoxBytes : 16);

  // L2 answers some 145 requests a nanosecond, rows of 64 bytes as many as of 128. Where values lie in rows
  // of 64, two of them are one of the copy's: 3 % of forward at densities up to .1. TMA then swizzles by 128
  // bytes, and of what wgmma reads as rows of 64 every second eight have neighbours exchanged: two outputs,
  // which is put right where sums leave. In dx it would be two k, and exchanging them in x's registers cost 3
  // % at .2 and above for 1 % below.
  static constexpr bool kPairedRows = kSlice == 32 && kBoxRowBytes == 64 && Element::kBytes == 2 && !kIsDx;
  static constexpr int kRowsOfOne = kPairedRows ? 2 : 1;  // of the copy's

  // kSplit: three planes [kSlice][32] of bf16 to a part.
  static constexpr std::uint32_t kPlaneBytes = kSlice * 64;
  static constexpr std::uint64_t kDescriptorPlane = ptx::wgmma_descriptor(ptx::Swizzle::bytes64, 8 * 64, 16);

  // Outputs leave by boxes of one warp, 16 tokens x 128 bytes or those of one line where it has fewer;
  // kTurned: of a warpgroup, 64 tokens x 64 outputs. kFinishes: the staging holds a tile of them.
  static constexpr int kOutBytes = static_cast<int>(size_of(Element::Out::kDtype));
  static constexpr int kStoreRows = kTurned ? 64 : 16,
                       kStoreColumns = kSlice * kOutBytes < 128 ? kSlice : 128 / kOutBytes;
  static constexpr int kStoreRowBytes = kStoreColumns * kOutBytes, kStoreBytes = kStoreRows * kStoreRowBytes;
  static constexpr int kStorers = kTurned ? kConsumers : kConsumers * 4;  // warps or warpgroups
  static constexpr int kStagingBuffers = kFinishes ? kTokens * kOutputs * kOutBytes / (kStorers * kStoreBytes)
                                                   : Shape::kStagingBuffers * (128 / kStoreRowBytes);

  // kFinishes: what is handed over at a time, a warp's outputs or, kTurned, a box.
  static constexpr int kUnits = 8, kUnitBytes = kTokens * kOutputs * kOutBytes / kUnits,
                       kUnitBoxes = kUnitBytes / kStoreBytes;

  // Lanes of the producer that hold index entries of the same line.
  static constexpr int kGroup = 32 / kLines;
  // A stage's record: which parts are present, and whether it ends the tile. Line i of part h: as ballots of
  // the producer give it. The second slab's parts count on from the first's.
  static __device__ constexpr std::uint32_t present(int line, int part) {
    return std::uint32_t{1} << (line * kGroup + part);
  }
  static constexpr std::uint32_t kLast = 4;
  static constexpr std::uint32_t kAllParts = [] {
    std::uint32_t all = 0;
    for (int line = 0; line < kLines; ++line) all |= std::uint32_t{3} << (line * kGroup);
    return all;
  }();
  static __device__ constexpr std::uint32_t all_present(int part) {
    return (kAllParts & ~(kAllParts << 1)) << part;
  }
  // kSplit, of a line's part: some of it, or all of it, is not in the planes (split_blocks.h).
  static constexpr int kSpecialBit = 3, kTinyBit = 4;
  static constexpr std::uint32_t kAnySpecial = (kAllParts & kAllParts >> 1) << kSpecialBit;
  static __device__ constexpr std::uint32_t special(int line) {
    return std::uint32_t{1} << (line * kGroup + kSpecialBit);
  }
  static __device__ constexpr std::uint32_t tiny(int line) {
    return std::uint32_t{1} << (line * kGroup + kTinyBit);
  }

  static_assert(!kAddsResidual || kOutBytes == 2,
                "of fp32 a pass adds it: ptxas would serialise their wgmma");
  static_assert(kHelpers * Shape::kProducerRegisters + kConsumers * Shape::kConsumerRegisters <=
                (kConsumers + kHelpers) * ptx::registers_at_launch(kThreads));
  static_assert(!kFinishes || kFinishable);
  static_assert(kStages % kProducers == 0, "a stage is filled by the same producer each time");
  static_assert(kSlice % 32 == 0 && kOutputs % kStoreColumns == 0 && kGroup > kTinyBit && kStageParts <= 2);
  static_assert((kBoxRowBytes == 128 || kBoxRowBytes == 64) && !(kIsDx && Element::kBytes != 2),
                "what wgmma reads");
  static_assert(kSlabBytes % 1024 == 0 && kBoxBytes % 1024 == 0 && kStoreBytes % 1024 == 0,
                "swizzled boxes start at multiples of 1024");
};

/// Of what one wgmma reads of x, from the warpgroup's first row of a stage; / 16.
template <class T>
__device__ constexpr std::uint32_t x_offset(int part, int step, int block) {
  const int slab = part / T::kParts, within = part % T::kParts;
  return (slab * T::kSlabBytes + block * 64 * T::kRowBytes + (within * T::kSteps + step) * 32) / 16;
}

/// The mbarrier for what comes of the residual to a warp's (kTurned: warpgroup's) staging. `phase`: the one
/// that ends next, of tiles with an odd number of boxes; the others begin with phase 0.
struct ResidualBarrier {
  std::uint64_t barrier;
  unsigned phase;
};

/// Dynamic shared memory, from a multiple of 1024.
template <class T>
struct SharedStorage {
  // x [kSlabs][kTokens][kSlab], then parts [kLines][kStageParts]; absent ones keep their place
  std::byte ring[T::kStages][T::kStageBytes];
  std::byte staging[T::kStorers][T::kStagingBuffers][T::kStoreBytes];
  std::uint64_t full[T::kStages], empty[T::kStages];  // mbarriers
  std::uint64_t handed[T::kFinishes ? T::kUnits : 1],
      taken[T::kFinishes ? T::kUnits : 1];  // mbarriers: wgmma_dds_finish.cuh
  ResidualBarrier residual[T::kStorers];
  std::uint32_t record[T::kStages][2];  // of the stage, and of the tile's next
  std::int32_t origin[T::Element::kSplit ? T::kStages : 1]
                     [T::kLines];  // kSplit: of the parts among all, in list order
};

struct Params {
  CUtensorMap x;                   // [m, width]: x or dy; boxes of a slab
  CUtensorMap values;              // [blocks * bm, bn]; boxes of a part
  CUtensorMap out;                 // [m, out_width]; boxes of kStoreRows x kStoreColumns
  CUtensorMap pre;                 // with store_pre: the same, before the activation
  CUtensorMap residual;            // kAddsResidual: as out
  const std::int32_t* list_begin;  // crow or ccol, [lines]
  const std::int32_t* list_end;    // [lines]
  const std::int32_t* along;       // col or row, [blocks]
  const std::int32_t* slot;        // dx only, [blocks]
  const void* bias;                // [out_width] or null
  std::int32_t lines, out_width;
  unsigned tiles, panels, groups, chunk, stride;  // see Tiles
  unsigned grid_panels, grid_rest,
      grid_turn;         // of the grid: whole panels, the groups left, by how many groups those panels turn
  bool ordered = false;  // line i of the tiles is line order[i] of the matrix
  int line_log2, side_log2;  // of the block's extents along the outputs and along the reduction
  Activation activation;
  const std::byte* planes;   // kSplit: the values' parts as they are to lie in the ring
  const std::int32_t* kind;  // kSplit: [blocks], see split_blocks.h
  const float* exact;        // kSplit: the values, of block slot[i] where slot is given and else of block i
  std::int32_t line_step, step;      // kSplit: from line to line of a block of them, and along the reduction
  const float *x_scale, *out_scale;  // kScaled: one factor or, if each, one for every token or output
  std::int32_t tokens;               // kScaled: of x_scale
  bool x_scale_each = false, out_scale_each = false;
  bool store_pre = false;
  ptx::L2Policy x_policy, values_policy, out_policy;
  std::uint16_t order[plan::kMostOrderedLines];  // last: 2 KB of the 4 KB that a kernel's arguments may have
};

}  // namespace sparseloom::kernels::cuda::wgmma_dds
