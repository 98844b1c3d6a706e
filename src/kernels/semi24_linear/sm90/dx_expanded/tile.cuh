// The tiles of dx_expanded and the content of a stage of its ring: for 64 rows of W their stored values,
// their positions and dY.
//
//   values     [blocks of 128 in features][64 rows][128 bytes], swizzled by TMA: 64 stored values are 32
//              groups, which are 128 in features
//   positions  [blocks][4 steps of 16 rows][4 warps][4 lanes q][4 words]: the words, eight groups each, of
//              rows 2 q, 2 q + 1, 2 q + 8 and 2 q + 9 of a step, so that a lane has its four by one load
//   x          [tokens][64 rows of W], swizzled by TMA: dY
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/semi24_linear/sm90/dx_expanded/entry.h"
#include "kernels/semi24_linear/sm90/forward_wgmma/element.cuh"
#include "kernels/shared/ptx/sm90/registers.cuh"
#include "kernels/shared/ptx/sm90/wgmma.cuh"

namespace sparseloom::kernels::cuda::semi24_dx {

/// kDivides_: the two consumer warpgroups have the same 128 in features and each every other half of a stage;
/// otherwise each has its own 128.
template <class Element_, int kTokens_, bool kDivides_, int kStages_>
struct Tile {
  using Element = Element_;
  static constexpr int kTokens = kTokens_, kStages = kStages_;
  static constexpr bool kDivides = kDivides_;
  static constexpr int kConsumers = 2, kThreads = (kConsumers + 1) * 128;
  static constexpr int kBlocks = kDivides ? 1 : 2, kInputs = kBlocks * 128;
  static constexpr int kSteps = kDivides ? 2 : 4;  // steps of 16 rows, per warpgroup and stage

  static constexpr int kValuesBytes = kDepth * 128, kPositionsBytes = kDepth * 16;  // bytes of a block
  static constexpr int kPositionsAt = kBlocks * kValuesBytes, kXAt = kPositionsAt + kBlocks * kPositionsBytes;
  static constexpr int kStageBytes = kXAt + kTokens * 128;
  static_assert(kXAt % 1024 == 0 && kStageBytes % 1024 == 0, "swizzled tiles start at multiples of 1024");

  // Whether sums fill a thread's registers; otherwise the launch provides enough.
  static constexpr bool kMovesRegisters = !kDivides;
  static constexpr int kProducerRegisters = 24, kConsumerRegisters = 240;
  static_assert(kConsumers * kConsumerRegisters + kProducerRegisters <=
                    ptx::registers_at_launch(kThreads) * (kConsumers + 1),
                "claimed registers must not exceed the released ones");

  static constexpr std::uint64_t kDescriptor = ptx::wgmma_descriptor(ptx::Swizzle::bytes128, 1024, 0);
};

struct Params {
  CUtensorMap values, x;
  const std::uint8_t* positions;
  std::uint16_t* out;
  std::int64_t out_stride;          // elements
  std::int32_t rows, cols, tokens;  // rows: the reduction
  std::int32_t position_bytes, tiles_of_depth;
};

// Four floats more than in features, so that the lanes of a quarter of a warp use all banks.
inline constexpr int kSumsStride = 128 + 4;

template <class T>
struct Shared {
  union {
    alignas(1024) std::byte ring[T::kStages][T::kStageBytes];
    float sums[T::kDivides ? T::kConsumers : 1][T::kDivides ? T::kTokens : 1][kSumsStride];
  };
  alignas(8) std::uint64_t full[T::kStages], empty[T::kStages];
  std::uint32_t selectors[16];  // see expand.cuh
};

}  // namespace sparseloom::kernels::cuda::semi24_dx
