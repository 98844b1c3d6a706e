// How the staged decode kernel (kernel.cuh) divides its work. Included by it.
//
// k comes in groups: the 16 or 32 bytes of a token that meet one row of a block. The four lanes of a row
// share a group in order, `kLaneWords` words each. W and X agree on that order, so an mma takes words 2h and
// 2h + 1 of both unchanged. A word is two k.
#pragma once

#include "kernels/bsr_linear/sm80/decode/params.cuh"
#include "kernels/bsr_linear/sm80/decode_staged/entry.h"
#include "kernels/shared/ptx/mma.cuh"

namespace sparseloom::kernels::cuda::decode::staged {

struct Bf16Mma {
  using Element = __nv_bfloat16;
  static __device__ __forceinline__ std::uint32_t operand(std::uint32_t word) { return word; }
  static __device__ __forceinline__ void mma(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                             std::uint32_t b1) {
    ptx::mma_m16n8k16_bf16(d, a, b0, b1);
  }
  static __device__ __forceinline__ void half_mma(float (&d)[4], std::uint32_t a0, std::uint32_t a1,
                                                  std::uint32_t b) {
    ptx::mma_m16n8k8_bf16(d, a0, a1, b);
  }
};

struct F16Mma {
  using Element = __half;
  static __device__ __forceinline__ std::uint32_t operand(std::uint32_t word) { return word; }
  static __device__ __forceinline__ void mma(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                             std::uint32_t b1) {
    ptx::mma_m16n8k16_f16(d, a, b0, b1);
  }
  static __device__ __forceinline__ void half_mma(float (&d)[4], std::uint32_t a0, std::uint32_t a1,
                                                  std::uint32_t b) {
    ptx::mma_m16n8k8_f16(d, a0, a1, b);
  }
};

template <class Mma_, int kLaneWords_, int kTiles_, int kTokenTiles_>
struct Config {
  using Mma = Mma_;
  using Element = typename Mma::Element;
  static constexpr int kSize = sizeof(Element);
  static constexpr int kLaneWords = kLaneWords_;  // 16-byte vectors of a group, and words per lane
  static constexpr int kGroupBytes = 16 * kLaneWords;
  static constexpr int kGroup = kGroupBytes / kSize;  // k per group: a block's columns
  static constexpr int kTiles = kTiles_;              // 8 outputs each, the N of an mma
  static constexpr int kStrip = kTileOutputs * kTiles;
  static constexpr int kTokenTiles = kTokenTiles_;  // 16 tokens each, the M of an mma
  static constexpr int kTokens = kTileTokens * kTokenTiles;
  static constexpr int kGroupWords = kLaneWords * kTiles;  // words of W per lane

  // W is loaded ahead into registers, in steps of kStepGroups groups. 4.3 TB/s for 1 us is 33 KB per
  // multiprocessor; all warps together have 48 to 96 KB in flight.
  static constexpr int kStepGroups = step_groups(kGroupWords);
  static constexpr int kMostWarps = most_warps(kTiles, kTokenTiles);
  static constexpr int kSteps = kGroupWords > 2 && kMostWarps == 24 ? 3 : 4;
  static constexpr int kVectors = vectors(kTiles, kTokenTiles);

  static_assert(kLaneWords == 1 || kLaneWords == 2, "blocks must have 8 or 16 columns");
  static_assert(kTiles == 1 || kTiles == 2, "blocks must have 8 or 16 rows");
};

}  // namespace sparseloom::kernels::cuda::decode::staged
