// What wgmma_dds multiplies and writes, one tag per type. Whatever the operands, k of one wgmma is 32 bytes
// of a row and a slab's row is 128 bytes, so that tiles, rings and descriptors differ in counts alone.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/ptx/convert.cuh"
#include "kernels/cuda/ptx/sm90/wgmma.cuh"
#include "kernels/cuda/ptx/sm90/wgmma_rs.cuh"
#include "kernels/cuda/sm90/wgmma_dds.h"
#include "sparseloom/dtype.h"

namespace sparseloom::kernels::cuda::wgmma_dds {

// Of out and bias.
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

/// kScaled: the sums are multiplied by the operands' scales before the bias is added.
/// kPromoted: the tensor cores' own sums end with each slab and are added up in fp32 registers.
/// kSplit: x and values are sums of narrower numbers.
/// kNarrowSlabs: a block of 64 bytes is a slab of its own, two of them to a stage, wherever they lie; else
/// its row is half of one.
struct Plain16 {
  static constexpr int kBytes = 2, kValueBytes = 2;
  static constexpr bool kScaled = false, kPromoted = false, kNarrowSlabs = false, kSplit = false;
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
  /// kTurned: a is the values', b x's.
  template <bool kMnMajorA, int kSums>
  static __device__ __forceinline__ void mma_turned(float (&d)[kSums], std::uint64_t a, std::uint64_t b) {
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
  /// kTurned: a is the values', b x's.
  template <bool kMnMajorA, int kSums>
  static __device__ __forceinline__ void mma_turned(float (&d)[kSums], std::uint64_t a, std::uint64_t b) {
    ptx::wgmma_f16<false, kMnMajorA>(d, a, b);
  }
};

/// For few blocks of side 32: X is not read under absent neighbours. At 8192 x 4096 x 4096 on an H200 20 %
/// faster at density .05 and 15 % at .1, 4 % slower at .2, where most slabs of 128 bytes are needed whole,
/// and 25 % at .5.
template <class Element>
struct Narrowed : Element {
  static constexpr bool kNarrowSlabs = true;
};

/// fp32 operands that TMA rounds to TF32 on their way. Both must be K-major: dx multiplies blocks that were
/// transposed before.
struct Tf32 {
  using Out = OutF32;
  static constexpr int kBytes = 4, kValueBytes = 4;
  static constexpr bool kScaled = false, kPromoted = false, kNarrowSlabs = false, kSplit = false;
  template <bool kMnMajorB, int kSums>
  static __device__ __forceinline__ void mma(float (&d)[kSums], std::uint64_t a, std::uint64_t b) {
    static_assert(!kMnMajorB, "wgmma transposes 16-bit operands alone");
    ptx::wgmma_tf32(d, a, b);
  }
};

template <class Out_>
struct Plain8 {
  using Out = Out_;
  static constexpr int kBytes = 1, kValueBytes = 1;
  static constexpr bool kScaled = true, kNarrowSlabs = true, kSplit = false;
};

/// 8-bit floats. The tensor cores keep some 14 bits of a sum: over 4096 inputs that error would pass the
/// rounding of a bf16 output, so no sum of theirs is longer than 128 inputs, as in the vendor's product
/// without fast accumulation.
template <class Out_>
struct E4m3 : Plain8<Out_> {
  static constexpr bool kPromoted = true;
  template <int kSums>
  static __device__ __forceinline__ void mma(float (&d)[kSums], std::uint64_t a, std::uint64_t b, bool add) {
    ptx::wgmma_e4m3(d, a, b, add);
  }
};

/// Where the caller takes sums as the tensor cores keep them (torch's use_fast_accum).
template <class Out_>
struct FastE4m3 : Plain8<Out_> {
  static constexpr bool kPromoted = false;
  template <bool kMnMajorB, int kSums>
  static __device__ __forceinline__ void mma(float (&d)[kSums], std::uint64_t a, std::uint64_t b) {
    static_assert(!kMnMajorB, "wgmma transposes 16-bit operands alone");
    ptx::wgmma_e4m3(d, a, b);
  }
  /// kTurned: a is the values', b x's.
  template <bool kMnMajorA>
  static __device__ __forceinline__ void mma_turned(float (&d)[128], std::uint64_t a, std::uint64_t b) {
    static_assert(!kMnMajorA, "wgmma transposes 16-bit operands alone");
    ptx::wgmma_e4m3(d, a, b);
  }
};

/// fp32 operands as sums of three bf16 each, of whose nine products six are added: wgmma_dds_split.cuh. x is
/// split on its way from shared memory to registers, the values before the product into planes in workspace.
struct Split {
  using Out = OutF32;
  static constexpr int kBytes = 4, kValueBytes = kSplitTile.value_bytes;
  static constexpr bool kScaled = false, kPromoted = false, kNarrowSlabs = false, kSplit = true;
};

}  // namespace sparseloom::kernels::cuda::wgmma_dds
