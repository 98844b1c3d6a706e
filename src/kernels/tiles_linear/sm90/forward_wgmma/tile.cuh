// Sizes of a tile, and the layout of shared memory.
//
//   unit     64 x 64 of W: what an entry of the table names; its slot in shared memory has room for a dense
//   one K tile   64 columns of W: the units of the tile's rows, and x for them
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/semi24_linear/sm80/metadata/metadata.h"
#include "kernels/semi24_linear/sm90/forward_wgmma/element.cuh"
#include "kernels/semi24_linear/sm90/forward_wgmma/tile.cuh"
#include "kernels/shared/ptx/sm90/registers.cuh"
#include "kernels/shared/ptx/sm90/wgmma.cuh"
#include "kernels/shared/ptx/sm90/wgmma_k_major.cuh"

namespace sparseloom::kernels::cuda::tiles {

struct Bf16 : semi24::Bf16 {
  template <int kSums>
  static __device__ __forceinline__ void mma_dense(float (&d)[kSums], std::uint64_t a, std::uint64_t b) {
    ptx::wgmma_k_major_bf16(d, a, b);
  }
};
struct F16 : semi24::F16 {
  template <int kSums>
  static __device__ __forceinline__ void mma_dense(float (&d)[kSums], std::uint64_t a, std::uint64_t b) {
    ptx::wgmma_k_major_f16(d, a, b);
  }
};

/// A tile of 64 kConsumers kBlocks rows of W x kTokens_ tokens; each consumer warpgroup has kBlocks blocks of
/// 64 rows. What semi24's Store and walk read has its names there.
template <class Element_, int kBlocks_, int kTokens_, int kStages_, int kConsumers_ = 2>
struct Tile {
  using Element = Element_;
  static constexpr int kConsumers = kConsumers_, kThreads = (kConsumers + 1) * 128;
  static constexpr int kBlocks = kBlocks_, kRows = kConsumers * kBlocks * 64, kTokens = kTokens_;
  static constexpr int kStages = kStages_, kUnits = kRows / 64, kCols = 64;

  static constexpr int kDenseBytes = 64 * 128, kHalfBytes = 64 * 64,
                       kMetadataBytes = static_cast<int>(kMetadataUnitBytes);
  static constexpr int kXBytes = kTokens * 128, kStageBytes = kUnits * kDenseBytes + kXBytes;
  // Four producer warps: one for each unit, which copies a part of x, too; of fewer units, the warps take
  // stages in turn. A warp takes some 400 clocks for a stage, and one for all units took up to 940.
  static constexpr int kProducers = 4, kPhases = kProducers / kUnits, kXPart = kTokens / kUnits;
  static_assert(kUnits <= kProducers && kXPart % 8 == 0, "parts of x begin at multiples of 1024 bytes");

  static constexpr int kStoreTokens = 32, kStoreBytes = kStoreTokens * 128, kStagingBuffers = 2;

  static constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;
  static_assert(kConsumers * kConsumerRegisters + kProducerRegisters <=
                    ptx::registers_at_launch(kThreads) * (kConsumers + 1),
                "claimed registers must not exceed the released ones");

  static constexpr std::uint64_t kDescriptor = ptx::wgmma_descriptor(ptx::Swizzle::bytes128, 1024, 0);
  static constexpr std::uint64_t kHalfDescriptor = ptx::wgmma_descriptor(ptx::Swizzle::bytes64, 512, 0);
};

struct Params {
  semi24::Params product;  // its `values` are those of the 2:4 tiles, its k_tiles those of 64 columns
  CUtensorMap dense;       // the values of the dense tiles
  const std::int32_t* table;
  std::int32_t units[2];  // 64 rows each of the dense and of the 2:4 values
  std::int32_t parts;     // 64 columns each of a tile
};

/// What a stage holds: the entries of its units, and whether it is the tile's last one.
struct Held {
  std::int32_t unit[4], last;
};
template <class T>
struct Rings {
  alignas(1024) std::byte stages[T::kStages][T::kStageBytes];
  Held held[T::kStages];
};
template <class T>
struct Barriers {
  alignas(8) std::uint64_t full[T::kStages], empty[T::kStages];
};

}  // namespace sparseloom::kernels::cuda::tiles
