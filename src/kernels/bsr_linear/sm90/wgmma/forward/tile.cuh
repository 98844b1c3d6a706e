// The compile-time side of wgmma::forward: the shape of a tile and the layout of shared memory. Terms:
//
//   block row   a block row of W in forward, a block column in dx. The positions of its blocks along the
//               reduction are a sorted list.
//   K tile      consecutive positions of the reduction, 64 of a 16-bit type, aligned to their number. They
//             take 128 bytes, which TMA and L2 move at full rate (rows of 64 bytes reach 85 % of it, rows
//               take 128 bytes, which TMA and L2 move at full rate (rows of 64 bytes reach 85 % of it, rows
//               of 32 bytes 45 %).
//               64 bytes is a part too, and a K tile then has up to two parts of each block row.
//   slice       a block row's columns of the tile: N of its wgmma, or M with swap-AB
//
// Tokens are M of the wgmma and a slice is N, and each warpgroup has half of the tokens. With swap-AB
// (kSwapAB), each warpgroup has 64 outputs of its own as M and all 256 tokens as N. There are then fewer,
// larger wgmma, one presence test per warpgroup, and no steps for the other warpgroup's block rows. Swap-AB
// is not used for slices of 32, where it would multiply absent values; not for sums that are added up in
// registers (kPromoted), which leave no room for it; and not for fp32 outputs, whose boxes would be twice the
// size.
//
// Blocks of 64 e4m3 are K tiles of 64 bytes, and a stage holds any two of them. At the densities that matter,
// rows at 85 % of the rate beat reading x under absent neighbours, and two K tiles per stage halve the
// consumers' latency.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <bit>
#include <cstddef>
#include <cstdint>

#include "kernels/bsr_linear/sm90/wgmma/forward/element.cuh"
#include "kernels/bsr_linear/sm90/wgmma/forward/entry.h"
#include "kernels/shared/ptx/l2_policy.cuh"
#include "kernels/shared/ptx/sm90/registers.cuh"
#include "kernels/shared/ptx/sm90/wgmma.cuh"
#include "plan/block_row_order.h"
#include "sparseloom/activation.h"

namespace sparseloom::kernels::cuda::wgmma::forward {

// Tags for the direction of an instance. In Forward, block rows are W's block rows and the reduction runs
// along the in features. In Dx, block rows are W's block columns and the reduction runs along the out
// features. ForwardPlus adds a residual; it is an instance of its own because its branches in the epilogue
// slow down products without a residual (measured). ForwardActivated adds what instances with a deferred
// store omit: an activation, or a scale per token. ForwardWithEpilogueWarps stores the sums and their
// activation (kMayHaveEpilogueWarps, epilogue_warps.cuh). ForwardGlu multiplies gates and factors (kGlu).
struct Forward {
  static constexpr bool kIsDx = false, kAddsResidual = false, kActivates = false, kHasEpilogueWarps = false,
                        kGlu = false;
};
struct ForwardActivated : Forward {
  static constexpr bool kActivates = true;
};
struct ForwardWithEpilogueWarps : ForwardActivated {
  static constexpr bool kHasEpilogueWarps = true;
};
struct ForwardPlus : ForwardActivated {
  static constexpr bool kAddsResidual = true;
};
struct ForwardGlu : ForwardActivated {
  static constexpr bool kGlu = true;
};
struct Dx : Forward {
  static constexpr bool kIsDx = true;
};

/// 256 tokens x 128 outputs measured faster than 128 x 256: a K tile has fewer block rows to test, and each
/// has twice the tensor-core work to hide the K tile's latency. The four stages have 48 KB each; three
/// measured slower in blocks of 128.
struct Wide {
  static constexpr int kTokens = kWideTile.tokens, kOutputs = kWideTile.outputs, kStages = 4,
                       kStagingBuffers = 2, kBlocksPerSm = kWideTile.per_multiprocessor;
  static constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;
};
/// Wide with epilogue warps. Instead of a fourth stage, shared memory holds the rounded sums of a tile until
/// the epilogue warps have stored them.
struct WideWithEpilogueWarps {
  static constexpr int kTokens = kWideTile.tokens, kOutputs = kWideTile.outputs, kStages = 3,
                       kStagingBuffers = 1, kBlocksPerSm = kWideTile.per_multiprocessor;
  static constexpr int kProducerRegisters = 64,
                       kConsumerRegisters = 192;  // 64: the epilogue warps' count, too
};
/// For products with few tiles: a quarter of Wide's outputs, and two thread blocks per SM.
struct Narrow {
  static constexpr int kTokens = kNarrowTile.tokens, kOutputs = kNarrowTile.outputs, kStages = 4,
                       kStagingBuffers = 1, kBlocksPerSm = kNarrowTile.per_multiprocessor;
  static constexpr int kProducerRegisters = 0, kConsumerRegisters = 0;  // 0: as launched; 32 sums leave room
};

/// For bf16x3. Half of Wide's tokens, so that registers hold the partial sums of a K tile and the three terms
/// of x. Stored values have six bytes and x has four: the tile reads 27 bytes a clock at the tensor cores'
/// rate.
struct HalfWide {
  static constexpr int kTokens = kBf16x3Tile.tokens, kOutputs = kBf16x3Tile.outputs, kStages = 4,
                       kStagingBuffers = 2, kBlocksPerSm = kBf16x3Tile.per_multiprocessor;
  static constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;
};

/// For bf16x3 with few tiles: half of the outputs, and enough stages for as many bytes in flight.
struct HalfNarrow {
  static constexpr int kTokens = kNarrowBf16x3Tile.tokens, kOutputs = kNarrowBf16x3Tile.outputs, kStages = 6,
                       kStagingBuffers = 2, kBlocksPerSm = kNarrowBf16x3Tile.per_multiprocessor;
  static constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;
};

constexpr ptx::Swizzle swizzle_of(int row_bytes) {
  return row_bytes == 128 ? ptx::Swizzle::bytes128 : ptx::Swizzle::bytes64;
}

/// The constants of one instance. Direction is a tag from above and Shape is one of Wide to HalfNarrow.
/// kSlice_ is the width of a slice, and kPart_ the extent of a part along the reduction.
template <class Direction, class Element_, class Shape, int kSlice_, int kPart_>
struct Tile : Shape {
  using Element = Element_;
  using Shape::kOutputs, Shape::kStages, Shape::kTokens;
  static constexpr bool kSwapAB = kTokens == 256 && kSlice_ >= 64 && Element::kBytes <= 2 &&
                                  !Element::kPromoted && size_of(Element::Out::kDtype) == 2;
  static constexpr bool kIsDx = Direction::kIsDx;
  static constexpr bool kAddsResidual = Direction::kAddsResidual,
                        kHasEpilogueWarps = Direction::kHasEpilogueWarps, kGlu = Direction::kGlu;
  // Deferred store: rounded sums are stored during the next tile's first products, which measured faster.
  // With an activation it is not used: half of the registers are then occupied, so few activations would be
  // in flight. Nor is it used with a scale for each of 256 tokens: in registers these spill, and in shared
  // memory they cost e4m3 as much as is gained (measured).
  static constexpr bool kDeferredStore = kSwapAB && !Direction::kActivates;
  // Gradients need the sums beside the output (8-bit products have none). Epilogue warps store them in
  // instances that may have such warps; otherwise the consumers do (kStoresPre).
  static constexpr bool kMayHaveEpilogueWarps = kTokens == kWideTile.tokens && !kIsDx && !kAddsResidual &&
                                                !Element::kScaled && size_of(Element::Out::kDtype) == 2;
  static constexpr bool kStoresPre = !kIsDx && !Element::kScaled && !kMayHaveEpilogueWarps && !kGlu;
  static constexpr int kSlice = kSlice_, kPart = kPart_;
  static constexpr int kKTiles =
      Element::kNarrowKTiles && kPart * Element::kBytes == 64 ? 2 : 1;  // K tiles per stage
  static constexpr int kRowBytes = 128 / kKTiles, kKTile = kRowBytes / Element::kBytes;
  static constexpr int kKTileLog2 = std::countr_zero(static_cast<unsigned>(kKTile));
  static constexpr int kBlockRows = kOutputs / kSlice,
                       kParts = kKTile / kPart;         // per K tile and block row
  static constexpr int kStageParts = kKTiles * kParts;  // per stage and block row

  // Two warpgroups multiply. In the third, kProducers warps issue the copies, each into its own stages. With
  // epilogue warps there is a fourth warpgroup, and all non-producer warps of the third and fourth are
  // epilogue warps.
  static constexpr int kConsumers = 2, kHelpers = kHasEpilogueWarps ? 2 : 1,
                       kThreads = (kConsumers + kHelpers) * 128;
  static constexpr int kTokenBlocks = kSwapAB ? 1 : kTokens / kConsumers / 64;  // 64-token blocks along M
  static constexpr int kProducers = kHasEpilogueWarps  ? kStages
                                    : kStages % 4 == 0 ? 4
                                                       : 2,
                       kEpilogueWarps = kHelpers * 4 - kProducers;
  // Two wgmma of 128 tokens replace one of 256, for which ptxas wants more registers than each of 512 threads
  // starts with.
  static constexpr int kTokenHalves = kSwapAB && kHasEpilogueWarps ? 2 : 1;
  // A wgmma of 32 outputs reads x from shared memory for longer than it multiplies; with x in registers it
  // runs at full rate, which measured faster.
  static constexpr bool kXInRegisters = kSlice == 32 && kTokenBlocks == 2 && Element::kBytes == 2;

  static constexpr int kKTileBytes = kTokens * kRowBytes, kXBytes = kKTiles * kKTileBytes;
  static constexpr int kPartBytes = kSlice * kPart * Element::kValueBytes;
  static constexpr int kStageBytes = kXBytes + kBlockRows * kStageParts * kPartBytes;

  // A part has the layout of values: [kSlice][kPart], K-major, in forward; [kPart][kSlice], MN-major, in dx.
  // A swizzled box is at most 128 bytes wide, so in dx a slice of 128 columns is two boxes.
  static constexpr int kBoxColumns = kIsDx ? (kSlice < 64 ? kSlice : 64) : kPart,
                       kBoxRows = kIsDx ? kPart : kSlice;
  static constexpr int kBoxes = kIsDx ? kSlice / kBoxColumns : 1,
                       kBoxRowBytes = kBoxColumns * Element::kBytes;
  static constexpr int kBoxBytes = kBoxRowBytes * kBoxRows;
  static constexpr int kSteps = kPart * Element::kBytes / 32;        // wgmma along K per part
  static constexpr int kStepBytes = kIsDx ? 16 * kBoxRowBytes : 32;  // K stride between wgmma
  static constexpr std::uint64_t kDescriptorX =
      ptx::wgmma_descriptor(swizzle_of(kRowBytes), 8 * kRowBytes, 16);
  static constexpr std::uint64_t kDescriptorPart =
      ptx::wgmma_descriptor(swizzle_of(kBoxRowBytes), 8 * kBoxRowBytes, kIsDx ? kBoxBytes : 16);

  // L2 is limited by requests, and a row of 64 bytes is a request as much as one of 128. If rows of values
  // have 64 bytes, the copy therefore treats two of them as one row, which measured faster at low densities.
  // TMA then swizzles by 128 bytes; to wgmma, which reads rows of 64 bytes, every second group of eight has
  // neighbouring rows exchanged. In forward these are outputs, and the epilogue exchanges them back. In dx
  // they would be positions of k; exchanging them in x's registers cost more at higher densities than it
  // gained at low ones.
  static constexpr bool kPairedRows = kSlice == 32 && kBoxRowBytes == 64 && Element::kBytes == 2 && !kIsDx;
  static constexpr int kRowsOfOne = kPairedRows ? 2 : 1;  // rows of values per row of the copy

  // kBf16x3: a part is three planes [kSlice][32] of bf16.
  static constexpr std::uint32_t kPlaneBytes = kSlice * 64;
  static constexpr std::uint64_t kDescriptorPlane = ptx::wgmma_descriptor(ptx::Swizzle::bytes64, 8 * 64, 16);

  // Outputs are stored in TMA boxes. A warp's box is 16 tokens x 128 bytes, or narrower if the block row is.
  // With swap-AB a warpgroup's box is 64 tokens x 64 outputs. With epilogue warps, the staging holds a whole
  // tile of boxes.
  static constexpr int kOutBytes = static_cast<int>(size_of(Element::Out::kDtype));
  static constexpr int kStoreRows = kSwapAB ? 64 : 16,
                       kStoreColumns = kSlice * kOutBytes < 128 ? kSlice : 128 / kOutBytes;
  static constexpr int kStoreRowBytes = kStoreColumns * kOutBytes, kStoreBytes = kStoreRows * kStoreRowBytes;
  static constexpr int kStorers = kSwapAB ? kConsumers : kConsumers * 4;  // warps, or warpgroups with swap-AB
  static constexpr int kStagingBuffers = kHasEpilogueWarps
                                             ? kTokens * kOutputs * kOutBytes / (kStorers * kStoreBytes)
                                             : Shape::kStagingBuffers * (128 / kStoreRowBytes);

  // kHasEpilogueWarps: a unit passes through the epilogue queue at a time: a warp's outputs or, with swap-AB,
  // a box.
  static constexpr int kUnits = 8, kUnitBytes = kTokens * kOutputs * kOutBytes / kUnits,
                       kUnitBoxes = kUnitBytes / kStoreBytes;

  // Lanes of a producer warp that hold index entries of one block row.
  static constexpr int kGroup = 32 / kBlockRows;
  // The stage descriptor (`record`) says which parts are present and whether the stage is the tile's last.
  // Each block row has kGroup bits from block_row * kGroup on, where the producer's ballots put them: parts
  // in bits 0 and 1, kSpecialBit and kTinyBit. The parts of a stage's second K tile follow those of the
  // first. kLast uses bit 2 of block row 0.
  static __device__ constexpr std::uint32_t present(int block_row, int part) {
    return std::uint32_t{1} << (block_row * kGroup + part);
  }
  static constexpr std::uint32_t kLast = 4;
  static constexpr std::uint32_t kAllParts = [] {
    std::uint32_t all = 0;
    for (int block_row = 0; block_row < kBlockRows; ++block_row)
      all |= std::uint32_t{3} << (block_row * kGroup);
    return all;
  }();
  static __device__ constexpr std::uint32_t all_present(int part) {
    return (kAllParts & ~(kAllParts << 1)) << part;
  }
  // kBf16x3: some elements of a block row's part, or all, are not in the planes
  // (wgmma/split_bf16x3/blocks.h).
  static constexpr int kSpecialBit = 3, kTinyBit = 4;
  static constexpr std::uint32_t kAnySpecial = (kAllParts & kAllParts >> 1) << kSpecialBit;
  static __device__ constexpr std::uint32_t special(int block_row) {
    return std::uint32_t{1} << (block_row * kGroup + kSpecialBit);
  }
  static __device__ constexpr std::uint32_t tiny(int block_row) {
    return std::uint32_t{1} << (block_row * kGroup + kTinyBit);
  }

  static_assert(!kAddsResidual || kOutBytes == 2,
                "of fp32 a pass adds it: ptxas would serialise their wgmma");
  static_assert(kHelpers * Shape::kProducerRegisters + kConsumers * Shape::kConsumerRegisters <=
                (kConsumers + kHelpers) * ptx::registers_at_launch(kThreads));
  static_assert(!kHasEpilogueWarps || kMayHaveEpilogueWarps);
  static_assert(!kGlu || (kBlockRows % 2 == 0 && Element::kBytes == 2),
                "a tile has block rows of both weights");
  static_assert(kStages % kProducers == 0, "a stage is filled by the same producer each time");
  static_assert(kSlice % 32 == 0 && kOutputs % kStoreColumns == 0 && kGroup > kTinyBit && kStageParts <= 2);
  static_assert((kBoxRowBytes == 128 || kBoxRowBytes == 64) && !(kIsDx && Element::kBytes != 2),
                "what wgmma reads");
  static_assert(kKTileBytes % 1024 == 0 && kBoxBytes % 1024 == 0 && kStoreBytes % 1024 == 0,
                "swizzled boxes start at multiples of 1024");
};

/// Offset of a wgmma's rows of x from the warpgroup's first row of a stage, / 16 as in descriptors.
template <class T>
__device__ constexpr std::uint32_t x_offset(int part, int step, int block) {
  const int k_tile = part / T::kParts, within = part % T::kParts;
  return (k_tile * T::kKTileBytes + block * 64 * T::kRowBytes + (within * T::kSteps + step) * 32) / 16;
}

/// The mbarrier of the residual's copies into the staging buffers of a warp, or of a warpgroup with swap-AB.
/// `phase` ends next. It is needed only if tiles have an odd number of boxes; otherwise every tile begins
/// with phase 0.
struct ResidualBarrier {
  std::uint64_t barrier;
  unsigned phase;
};

/// Dynamic shared memory; its base is a multiple of 1024.
template <class T>
struct SharedStorage {
  // x [kKTiles][kTokens][kKTile], then parts [kBlockRows][kStageParts]; absent parts leave their slots unused
  std::byte ring[T::kStages][T::kStageBytes];
  std::byte staging[T::kStorers][T::kStagingBuffers][T::kStoreBytes];
  std::uint64_t full[T::kStages], empty[T::kStages];  // mbarriers
  // mbarriers of the epilogue queue: epilogue_warps.cuh
  std::uint64_t handed[T::kHasEpilogueWarps ? T::kUnits : 1], taken[T::kHasEpilogueWarps ? T::kUnits : 1];
  ResidualBarrier residual[T::kStorers];
  std::uint32_t record[T::kStages][2];  // descriptors of this stage and the tile's next one
  std::int32_t origin[T::Element::kBf16x3 ? T::kStages : 1]
                     [T::kBlockRows];  // kBf16x3: block of each part, numbered in list order
};

struct Params {
  CUtensorMap x;                   // [m, width]: x or dy; boxes of a K tile
  CUtensorMap values;              // [blocks * bm, bn]; boxes of a part
  CUtensorMap out;                 // [m, out_width]; boxes of [kStoreRows, kStoreColumns]
  CUtensorMap pre;                 // with store_pre: out's shape, before the activation
  CUtensorMap residual;            // kAddsResidual: out's shape
  CUtensorMap factor_values;       // kGlu: values of the second weight
  const std::int32_t* list_begin;  // crow or ccol, [block rows]
  const std::int32_t* list_end;    // [block rows]
  const std::int32_t* along;       // col or row, [blocks]
  const std::int32_t* slot;        // dx only, [blocks]
  const void* bias;                // [out_width] or null
  std::int32_t block_rows, out_width;
  // kGlu: the second weight's lists, and its bias or null
  const std::int32_t *factor_begin, *factor_along;
  const void* factor_bias;
  unsigned tiles, m_tiles, groups, chunk, stride;  // see Tiles
  // Tiles adds these per step of the grid: its whole M tiles, the remaining groups, and the shift of the
  // first group by these M tiles
  unsigned grid_m_tiles, grid_rest, grid_turn;
  bool ordered = false;           // block row i of the tiles is block row order[i] of the matrix
  int block_row_log2, side_log2;  // of the block's extents along outputs and reduction
  Activation activation;
  const std::byte* planes;   // kBf16x3: the values' parts, laid out as in the ring
  const std::int32_t* kind;  // kBf16x3: [blocks], see wgmma/split_bf16x3/blocks.h
  const float* exact;        // kBf16x3: the fp32 values; block i is at slot[i] if slot is given
  // kBf16x3: strides in a block of `exact`, from output to output and along the reduction
  std::int32_t block_row_step, step;
  const float *x_scale, *out_scale;  // kScaled: one factor or, with .._each, one for each token or output
  std::int32_t tokens;               // kScaled: length of x_scale
  bool x_scale_each = false, out_scale_each = false;
  bool store_pre = false;
  ptx::L2Policy x_policy, values_policy, out_policy;
  // The last member: 2 KB of the 4 KB limit on kernel arguments
  std::uint16_t order[plan::kMostOrderedBlockRows];
};

}  // namespace sparseloom::kernels::cuda::wgmma::forward
