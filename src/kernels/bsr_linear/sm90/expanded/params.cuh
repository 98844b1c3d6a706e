// The parameters of the kernel of sm90_expanded, and its compile-time side. For dX, "block row" means block
// column in all files of this folder, and "x" means dY.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/bsr_linear/sm90/expanded/entry.h"
#include "kernels/bsr_linear/sm90/wgmma/forward/element.cuh"
#include "kernels/shared/ptx/sm90/registers.cuh"
#include "sparseloom/activation.h"

namespace sparseloom::kernels::cuda::expanded {

struct Params {
  CUtensorMap x;                   // [m, depth] in boxes of tile_tokens x kKTile
  const uint4* values;             // in vectors of 8 elements
  const std::int32_t* list_begin;  // crow or ccol, [block_rows + 1]
  const std::int32_t* along;       // col or row, [blocks]
  const std::int32_t* slot;        // dX only, [blocks]
  const void* bias;                // [out_width] or null
  const void* residual;            // [m, out_width], residual_stride, or null
  void* out;                       // [m, out_width], out_stride
  void* pre;                       // the same before the activation, or null
  float4* partials;                // [token tile][share][warp][kFragments][lane]
  std::uint64_t* flags;            // [token tile][share][warp]
  std::uint64_t nonce;             // value of a set flag
  std::int64_t out_stride, pre_stride, residual_stride;
  int m, out_width;
  int block_rows, out_tiles, k_tiles, shares;
  int tile_tokens;             // tokens per token tile, at most a tile's capacity
  int side_log2, k_side_log2;  // of a block along the outputs, and along the reduction
  Activation activation;
  bool store_whole, store_pre_whole;  // eight outputs may be stored at once
  bool plain;                         // sums get a bias at most, and are stored whole
  std::int64_t blocks;                // for prefetching only
};

// Warps: two warpgroups multiply, and each of the other four warps expands one group of outputs.
inline constexpr int kGroups = kTileOutputs / kGroup, kConsumerWarps = 8,
                     kThreads = (kConsumerWarps + kGroups) * 32;
inline constexpr int kProducerRegisters = 88, kConsumerRegisters = 208;
// The register counts must not exceed what the launch provides, or setmaxnreg waits for ever.
static_assert((kProducerRegisters + 2 * kConsumerRegisters) * 128 <=
              ptx::registers_at_launch(kThreads) * kThreads);

// A slice is 16 positions of the reduction, K of a wgmma. A slot holds 16 x 16 elements of W.
inline constexpr int kSlices = kKTile / 16, kSlots = kGroup / 16, kSlotBytes = 16 * 16 * 2,
                     kGroupBytes = kSlots * kSlotBytes, kSliceBytes = kGroups * kGroupBytes;
inline constexpr int kMostCells = (kGroup / 8) * (kKTile / 8);  // blocks of a group in a K tile, of side 8

template <class Element_, bool kDx_, int kTokens_>
struct Config {
  using Element = Element_;
  using Out = Element::Out;
  static constexpr bool kDx = kDx_;
  static constexpr int kTokens = kTokens_;
  static constexpr int kXBytes = kTokens * kKTile * 2, kWBytes = kSlices * kSliceBytes,
                       kStageBytes = kXBytes + kWBytes;
  static constexpr int kStages = 4;
  static constexpr int kOwnGroups = kGroups / 2;             // groups of a warpgroup
  static constexpr int kSums = kTokens / 2;                  // sums of a lane in a group
  static constexpr int kFragments = kOwnGroups * kSums / 4;  // fragments of 16 bytes per lane
};

/// A lane's sums of its warpgroup's groups.
template <class C>
using Sums = float[C::kOwnGroups][C::kSums];

inline constexpr int kStagedTokens = 16, kStagedPitch = 20;  // 20: no bank conflicts when sums are written

template <class C>
struct Shared {
  // X [token][64], 128-byte swizzle; then W [slice][group][slot][16][16], 32-byte swizzle.
  alignas(1024) std::byte ring[C::kStages][C::kStageBytes];
  float staged[kConsumerWarps][kStagedTokens * kStagedPitch];
  std::uint32_t masks[kGroups][kMostKTiles][2];  // which cells store a block: bit row * columns + column
  alignas(16) std::int32_t vectors[kGroups][kMostCells];  // Group::vectors_of, by entry
  std::int32_t starts[kGroups][kGroup / 8];               // position in the list, by block row of the group
  std::int32_t lines_before[kMostOutTiles + 1], begins[kMostShares + 1];  // see cut.cuh
  std::uint64_t full[C::kStages], empty[C::kStages];
  std::uint8_t records[C::kStages][kGroups];  // a bit for each nonempty slice of the group
};

}  // namespace sparseloom::kernels::cuda::expanded
