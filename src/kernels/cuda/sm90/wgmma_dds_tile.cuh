// Compile-time side of wgmma_dds: element types, the shape of a tile, and where its bytes lie in shared memory.
//
//   line    block row of W (forward) or block column (dx); its blocks' places along the reduction are a sorted list
//   slab    64 consecutive positions of the reduction, from a multiple of 64: 128 bytes, which TMA and L2 move at full rate
//           (rows of 64 bytes reach 85 %, of 32 bytes 45 % of that)
//   part    what one line stores in a slab: half a block of side 128, a block of side 64, or up to two blocks of side 32
//   slice   a line's columns of the tile: N of its wgmma
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/ptx/convert.cuh"
#include "kernels/cuda/ptx/sm90/wgmma.cuh"
#include "sparseloom/plan.h"

namespace sparseloom::kernels::cuda::wgmma_dds {

// Tags. Forward: lines are block rows, the reduction runs along in features. Dx: lines are block columns, along out features.
struct Forward {
  static constexpr bool kIsDx = false;
};
struct Dx {
  static constexpr bool kIsDx = true;
};

struct Bf16 {
  template <bool kMnMajorB, int kSums>
  static __device__ __forceinline__ void mma(float (&d)[kSums], std::uint64_t a, std::uint64_t b) {
    ptx::wgmma_bf16<kMnMajorB>(d, a, b);
  }
  static __device__ __forceinline__ float to_f32(std::uint16_t bits) { return ptx::cvt_f32_bf16(bits); }
  static __device__ __forceinline__ std::uint32_t pair(float low, float high) { return ptx::cvt_rn_bf16x2(low, high); }
};

struct F16 {
  template <bool kMnMajorB, int kSums>
  static __device__ __forceinline__ void mma(float (&d)[kSums], std::uint64_t a, std::uint64_t b) {
    ptx::wgmma_f16<kMnMajorB>(d, a, b);
  }
  static __device__ __forceinline__ float to_f32(std::uint16_t bits) { return ptx::cvt_f32_f16(bits); }
  static __device__ __forceinline__ std::uint32_t pair(float low, float high) { return ptx::cvt_rn_f16x2(low, high); }
};

/// 256 tokens beat 128 tokens x 256 outputs by up to 17 %: fewer lines to test per slab, and each has twice the tensor work to hide
/// the slab's latency behind. Four stages of 48 KB: three lost up to 4 % at block 128.
struct Wide {
  static constexpr int kTokens = 256, kOutputs = 128, kStages = 4, kStagingBuffers = 2, kBlocksPerSm = 1;
  static constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;
};
/// For products with few tiles: a quarter of the outputs, two thread blocks to a multiprocessor.
struct Narrow {
  static constexpr int kTokens = 128, kOutputs = 64, kStages = 4, kStagingBuffers = 1, kBlocksPerSm = 2;
  static constexpr int kProducerRegisters = 0, kConsumerRegisters = 0;  // as launched: 32 sums leave room
};

constexpr int kSlab = 64;

template <class Direction, class Element_, class Shape, int kSlice_, int kPart_>
struct Tile : Shape {
  using Element = Element_;
  using Shape::kOutputs, Shape::kStages, Shape::kStagingBuffers, Shape::kTokens;
  static constexpr bool kIsDx = Direction::kIsDx;
  static constexpr int kSlice = kSlice_, kPart = kPart_;
  static constexpr int kLines = kOutputs / kSlice, kParts = kSlab / kPart;  // of a slab: lines, and parts of each line

  // Two warpgroups multiply, each for half of the tokens; of the third one warp starts the copies.
  static constexpr int kConsumers = 2, kThreads = (kConsumers + 1) * 128;
  static constexpr int kTokenBlocks = kTokens / kConsumers / 64;  // of a warpgroup: M of wgmma

  static constexpr int kXBytes = kTokens * kSlab * 2, kPartBytes = kSlice * kPart * 2;
  static constexpr int kStageBytes = kXBytes + kLines * kParts * kPartBytes;

  // A part lies as in values: forward [kSlice][kPart], K-major; dx [kPart][kSlice], MN-major. A swizzled box is at most 128 bytes
  // wide, so a slice of 128 columns is two boxes.
  static constexpr int kBoxColumns = kIsDx ? (kSlice < 64 ? kSlice : 64) : kPart, kBoxRows = kIsDx ? kPart : kSlice;
  static constexpr int kBoxes = kIsDx ? kSlice / kBoxColumns : 1, kBoxBytes = kBoxColumns * kBoxRows * 2;
  static constexpr ptx::Swizzle kSwizzle = kBoxColumns == 64 ? ptx::Swizzle::bytes128 : ptx::Swizzle::bytes64;
  static constexpr int kStepBytes = kIsDx ? 16 * kBoxColumns * 2 : 32;  // 16 k further in a part
  static constexpr std::uint64_t kDescriptorX = ptx::wgmma_descriptor(ptx::Swizzle::bytes128, 8 * 128, 16);
  static constexpr std::uint64_t kDescriptorPart = ptx::wgmma_descriptor(kSwizzle, 8 * kBoxColumns * 2, kIsDx ? kBoxBytes : 16);

  // Outputs leave by boxes of one warp: 16 tokens x 64 columns.
  static constexpr int kStoreRows = 16, kStoreColumns = 64, kStoreBytes = kStoreRows * kStoreColumns * 2;

  // Lanes of the producer that hold index entries of the same line.
  static constexpr int kGroup = 32 / kLines;
  // A stage's record: which parts are present, and whether it ends the tile. Line i of part h: as ballots of the producer give it.
  static __device__ constexpr std::uint32_t present(int line, int part) { return std::uint32_t{1} << (line * kGroup + part); }
  static constexpr std::uint32_t kLast = 4;

  static_assert(kSlice % 32 == 0 && kOutputs % kStoreColumns == 0 && kGroup > 2);
  static_assert(kXBytes % 1024 == 0 && kBoxBytes % 1024 == 0 && kStoreBytes % 1024 == 0,
                "swizzled boxes start at multiples of 1024");
};

/// Dynamic shared memory, from a multiple of 1024.
template <class T>
struct SharedStorage {
  std::byte ring[T::kStages][T::kStageBytes];  // x [kTokens][64], then parts [kLines][kParts]; absent ones keep their place
  std::byte staging[T::kConsumers * 4][T::kStagingBuffers][T::kStoreBytes];
  std::uint64_t full[T::kStages], empty[T::kStages];  // mbarriers
  std::uint32_t record[T::kStages];
};

struct Params {
  CUtensorMap x;                   // [m, width]: x or dy; boxes of kTokens x 64
  CUtensorMap values;              // [blocks * bm, bn]; boxes of a part
  CUtensorMap out;                 // [m, out_width]; boxes of 16 x 64
  const std::int32_t* list_begin;  // crow or ccol, [lines + 1]
  const std::int32_t* along;       // col or row, [blocks]
  const std::int32_t* slot;        // dx only, [blocks]
  const void* bias;                // [out_width] or null
  std::int32_t lines, out_width;
  unsigned tiles, panels, groups, chunk;  // see place_of
  int line_log2, side_log2;               // of the block's extents along the outputs and along the reduction
  Activation activation;
};

/// First token and output of a tile.
struct Place {
  std::int32_t token, output;
};

/// Thread block i takes tiles i, i + gridDim.x, ..: panels of tokens outside, groups of outputs inside, so that the chip works on
/// few panels of x at a time and L2 serves them; from wave to wave a thread block meets other groups, which evens out long lists.
/// Where the values are larger than L2, `chunk` groups see all panels before the next chunk does.
template <class T>
__device__ __forceinline__ Place place_of(const Params& params, unsigned tile) {
  const unsigned chunk = tile / (params.panels * params.chunk), first = chunk * params.chunk;
  const unsigned width = min(params.chunk, params.groups - first), within = tile - first * params.panels;
  return {static_cast<std::int32_t>(within / width * T::kTokens),
          static_cast<std::int32_t>((first + within % width) * T::kOutputs)};
}

}  // namespace sparseloom::kernels::cuda::wgmma_dds
