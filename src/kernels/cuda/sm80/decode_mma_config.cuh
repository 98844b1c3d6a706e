// How the tensor-core decode kernel (decode_mma.cuh) cuts its work. Included by it.
//
// k comes in groups: 16 to 64 bytes of a token, which the four lanes of a row share in order, `kPieces` words each. W and X of a
// group agree on that order, so an mma takes words 2h and 2h + 1 of both as they are: the order of k inside a group is free as long
// as both operands keep it. A word is two 16-bit k or one TF32 k.
#pragma once

#include <type_traits>

#include "kernels/cuda/ptx/mma.cuh"
#include "kernels/cuda/ptx/mma_k8.cuh"
#include "kernels/cuda/sm80/decode_params.cuh"

namespace sparseloom::kernels::cuda::decode {

struct Bf16Mma {
  using Element = __nv_bfloat16;
  static __device__ __forceinline__ std::uint32_t operand(std::uint32_t word) { return word; }
  static __device__ __forceinline__ void mma(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
    ptx::mma_m16n8k16_bf16(d, a, b0, b1);
  }
  static __device__ __forceinline__ void half_mma(float (&d)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t b) {
    ptx::mma_m16n8k8_bf16(d, a0, a1, b);
  }
};

struct F16Mma {
  using Element = __half;
  static __device__ __forceinline__ std::uint32_t operand(std::uint32_t word) { return word; }
  static __device__ __forceinline__ void mma(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
    ptx::mma_m16n8k16_f16(d, a, b0, b1);
  }
  static __device__ __forceinline__ void half_mma(float (&d)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t b) {
    ptx::mma_m16n8k8_f16(d, a0, a1, b);
  }
};

/// Blocks have rows of at least 32 bytes here, so there is no half_mma.
struct Tf32Mma {
  using Element = float;
  static __device__ __forceinline__ std::uint32_t operand(std::uint32_t word) { return ptx::cvt_rna_tf32(word); }
  static __device__ __forceinline__ void mma(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
    ptx::mma_m16n8k8_tf32(d, a, b0, b1);
  }
};

template <class Mma_, class Walk_, int kPieces_, int kTiles_, int kTokenTiles_>
struct Config {
  using Mma = Mma_;
  using Element = typename Mma::Element;
  using Walk = Walk_;
  static constexpr bool kForward = std::is_same_v<Walk, Forward>;
  static constexpr int kSize = sizeof(Element);
  static constexpr int kPieces = kPieces_;  // 16-byte pieces of a group, and words of a lane
  static constexpr int kGroupBytes = 16 * kPieces;
  static constexpr int kGroup = kGroupBytes / kSize;  // k of a group; divides the k side
  static constexpr int kTiles = kTiles_;              // 8 outputs each, the N of an mma
  static constexpr int kStrip = 8 * kTiles;
  static constexpr int kTokenTiles = kTokenTiles_;  // 16 tokens each, the M of an mma
  static constexpr int kTokens = 16 * kTokenTiles;
  static constexpr int kGroupWords = kPieces * kTiles;  // of W, per lane

  // W waits in registers, in steps of kStepGroups groups. 4.3 TB/s for 1 us is 33 KB per multiprocessor; all warps together have 48
  // to 96 KB on their way.
  static constexpr int kStepGroups = kGroupWords == 1 ? 4 : kGroupWords <= 4 ? 2 : 1;
  // What the registers allow: 80 per lane for 24 warps, 128 for 16, 168 for 12. dX of 32 TF32 outputs wants 84.
  static constexpr bool kFewRegisters = kPieces < 4 && kTiles * kTokenTiles <= 4 && (kForward || kSize == 2 || kTiles < 4);
  static constexpr int kMostWarps = kFewRegisters ? 24 : kTiles * kTokenTiles <= 8 ? 16 : 12;
  static constexpr int kSteps = kGroupWords > 8 || (kGroupWords > 2 && kMostWarps == 24) || (kGroupWords == 1 && !kForward) ? 3 : 4;
  static constexpr int kVectors = kTokenTiles * kTiles * 32;  // float4 of a warp's partial sums

  static_assert(kPieces == 1 || kPieces == 2 || (kPieces == 4 && kForward), "dX gains nothing from longer groups");
  static_assert(kPieces > 1 || kSize == 2, "8 fp32 are 32 bytes");
};

/// How a launch cuts one product. Counts of k are in groups.
struct Tiling {
  int strips = 0;            // of all lines
  int block_strips = 0;      // of one thread block
  int strip_warps = 0;       // that share a strip's blocks
  int split = 0;             // thread blocks of a cluster: each sums over its own range of k
  int range = 0;             // of one of them; multiple of 128 k
  int k_groups = 0;          // of a, rounded up to 128 k
  int chunk = 0;             // of a, resident at a time; multiple of 128 k
  int group_shift = 0;       // log2(groups of a block)
  unsigned chunk_bytes = 0;  // of shared memory
};

}  // namespace sparseloom::kernels::cuda::decode
