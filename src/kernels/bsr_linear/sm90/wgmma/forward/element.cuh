// The operand types of wgmma::forward: one tag for each. For every type, one wgmma takes 32 bytes of a row
// along K, and a row of a K tile is 128 bytes, so tiles, rings and descriptors differ only in counts.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/bsr_linear/sm90/wgmma/forward/entry.h"
#include "kernels/shared/ptx/convert.cuh"
#include "kernels/shared/ptx/sm90/wgmma.cuh"
#include "kernels/shared/ptx/sm90/wgmma_rs.cuh"
#include "sparseloom/dtype.h"

namespace sparseloom::kernels::cuda::wgmma::forward {

// Types of out and bias.
struct OutBf16 {
  using Bits = std::uint16_t;
  static constexpr DType kDtype = DType::bf16;
  static __device__ __forceinline__ float to_f32(std::uint16_t bits) { return ptx::cvt_f32_bf16(bits); }
  static __device__ __forceinline__ std::uint32_t pair(float low, float high) {
    return ptx::cvt_rn_bf16x2(low, high);
  }
};

struct OutF16 {
  using Bits = std::uint16_t;
  static constexpr DType kDtype = DType::f16;
  static __device__ __forceinline__ float to_f32(std::uint16_t bits) { return ptx::cvt_f32_f16(bits); }
  static __device__ __forceinline__ std::uint32_t pair(float low, float high) {
    return ptx::cvt_rn_f16x2(low, high);
  }
};

struct OutF32 {
  using Bits = float;
  static constexpr DType kDtype = DType::f32;
  static __device__ __forceinline__ float to_f32(float bits) { return bits; }
};

/// Constants of every tag:
///
///   kScaled         the sums are multiplied by the operands' scales before the bias is added
///   kPromoted       the tensor cores' own sums end with each K tile and are added up in fp32 registers
///   kBf16x3         x and values are fp32, each multiplied as a sum of three bf16
///   kNarrowKTiles   a block of 64 bytes is a K tile of its own, and a stage holds two of them, wherever they
///                   are; otherwise it is half of a K tile
struct Plain16 {
  static constexpr int kBytes = 2, kValueBytes = 2;
  static constexpr bool kScaled = false, kPromoted = false, kNarrowKTiles = false, kBf16x3 = false;
};

struct Bf16 : Plain16 {
  using Out = OutBf16;
  template <bool kMnMajorB, int kSums>
  static __device__ __forceinline__ void mma(float (&d)[kSums], std::uint64_t a, std::uint64_t b) {
    ptx::wgmma_bf16<kMnMajorB>(d, a, b);
  }
  template <bool kMnMajorB>
  static __device__ __forceinline__ void mma(float (&d)[16], const std::uint32_t (&a)[4], std::uint64_t b) {
    ptx::wgmma_rs_bf16<kMnMajorB>(d, a, b);
  }
  /// With swap-AB, a is the values' descriptor and b is x's.
  template <bool kMnMajorA, int kSums>
  static __device__ __forceinline__ void mma_swap_ab(float (&d)[kSums], std::uint64_t a, std::uint64_t b) {
    ptx::wgmma_bf16<false, kMnMajorA>(d, a, b);
  }
};

struct F16 : Plain16 {
  using Out = OutF16;
  template <bool kMnMajorB, int kSums>
  static __device__ __forceinline__ void mma(float (&d)[kSums], std::uint64_t a, std::uint64_t b) {
    ptx::wgmma_f16<kMnMajorB>(d, a, b);
  }
  template <bool kMnMajorB>
  static __device__ __forceinline__ void mma(float (&d)[16], const std::uint32_t (&a)[4], std::uint64_t b) {
    ptx::wgmma_rs_f16<kMnMajorB>(d, a, b);
  }
  /// With swap-AB, a is the values' descriptor and b is x's.
  template <bool kMnMajorA, int kSums>
  static __device__ __forceinline__ void mma_swap_ab(float (&d)[kSums], std::uint64_t a, std::uint64_t b) {
    ptx::wgmma_f16<false, kMnMajorA>(d, a, b);
  }
};

/// For few blocks of side 32: x is not read under absent neighbours. This measured faster up to a density of
/// .1. At .2 and above, where most K tiles of 128 bytes are needed in full, it measured slower (the log has
/// the figures).
template <class Element>
struct Narrowed : Element {
  static constexpr bool kNarrowKTiles = true;
};

/// fp32 operands that TMA rounds to TF32 as it copies them. wgmma requires both to be K-major, so dx
/// multiplies blocks that were transposed first.
struct Tf32 {
  using Out = OutF32;
  static constexpr int kBytes = 4, kValueBytes = 4;
  static constexpr bool kScaled = false, kPromoted = false, kNarrowKTiles = false, kBf16x3 = false;
  template <bool kMnMajorB, int kSums>
  static __device__ __forceinline__ void mma(float (&d)[kSums], std::uint64_t a, std::uint64_t b) {
    static_assert(!kMnMajorB, "wgmma transposes 16-bit operands only");
    ptx::wgmma_tf32(d, a, b);
  }
};

template <class Out_>
struct Plain8 {
  using Out = Out_;
  static constexpr int kBytes = 1, kValueBytes = 1;
  static constexpr bool kScaled = true, kNarrowKTiles = true, kBf16x3 = false;
};

/// 8-bit floats. The tensor cores keep some 14 bits of a sum. Over 4096 inputs the error would exceed the
/// rounding of a bf16 output, so tensor cores add at most 128 inputs, as cuBLAS does without fast
/// accumulation.
template <class Out_>
struct E4m3 : Plain8<Out_> {
  static constexpr bool kPromoted = true;
  template <int kSums>
  static __device__ __forceinline__ void mma(float (&d)[kSums], std::uint64_t a, std::uint64_t b, bool add) {
    ptx::wgmma_e4m3(d, a, b, add);
  }
};

/// For callers who accept the tensor cores' precision of sums (torch's use_fast_accum).
template <class Out_>
struct FastE4m3 : Plain8<Out_> {
  static constexpr bool kPromoted = false;
  template <bool kMnMajorB, int kSums>
  static __device__ __forceinline__ void mma(float (&d)[kSums], std::uint64_t a, std::uint64_t b) {
    static_assert(!kMnMajorB, "wgmma transposes 16-bit operands only");
    ptx::wgmma_e4m3(d, a, b);
  }
  /// With swap-AB, a is the values' descriptor and b is x's.
  template <bool kMnMajorA>
  static __device__ __forceinline__ void mma_swap_ab(float (&d)[128], std::uint64_t a, std::uint64_t b) {
    static_assert(!kMnMajorA, "wgmma transposes 16-bit operands only");
    ptx::wgmma_e4m3(d, a, b);
  }
};

/// bf16x3: fp32 operands are sums of three bf16 each, and six of the nine products are added
/// (wgmma/split_bf16x3/kernel.cuh). x is split on its way from shared memory to registers; the values are
/// split before the product, into planes in the workspace.
struct Bf16x3 {
  using Out = OutF32;
  static constexpr int kBytes = 4, kValueBytes = kBf16x3Tile.value_bytes;
  static constexpr bool kScaled = false, kPromoted = false, kNarrowKTiles = false, kBf16x3 = true;
};

}  // namespace sparseloom::kernels::cuda::wgmma::forward
