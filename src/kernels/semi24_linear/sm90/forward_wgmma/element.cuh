// The operand types of the kernels: one tag for each. For every type, one wgmma.sp takes 32 bytes of a row of
// values and 64 of x, so that tiles, rings and descriptors differ only in counts.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/shared/ptx/convert.cuh"
#include "kernels/shared/ptx/ld.cuh"
#include "kernels/shared/ptx/sm90/wgmma_sp.cuh"
#include "sparseloom/dtype.h"

namespace sparseloom::kernels::cuda::semi24 {

/// Constants of every tag:
///
///   kBytes      bytes of a value
///   kScaled     sums are multiplied by the operands' scales before the bias is added; out and bias are then
///               of bf16, or of fp32 if the product says so
///   kPromoted   the tensor cores' own sums end after 128 columns and are added up in fp32 registers
struct Plain16 {
  using Sum = float;
  static constexpr int kBytes = 2;
  static constexpr bool kScaled = false, kPromoted = false;
};

struct Bf16 : Plain16 {
  static constexpr DType kDtype = DType::bf16;
  template <int kSelector, int kSums>
  static __device__ __forceinline__ void mma(float (&d)[kSums], std::uint64_t a, std::uint64_t b,
                                             std::uint32_t metadata, bool add) {
    ptx::wgmma_sp_bf16<kSelector>(d, a, b, metadata, add);
  }
  static __device__ __forceinline__ float to_f32(std::uint16_t bits) { return ptx::cvt_f32_bf16(bits); }
  static __device__ __forceinline__ std::uint32_t pair(float low, float high) {
    return ptx::cvt_rn_bf16x2(low, high);
  }
};

struct F16 : Plain16 {
  static constexpr DType kDtype = DType::f16;
  template <int kSelector, int kSums>
  static __device__ __forceinline__ void mma(float (&d)[kSums], std::uint64_t a, std::uint64_t b,
                                             std::uint32_t metadata, bool add) {
    ptx::wgmma_sp_f16<kSelector>(d, a, b, metadata, add);
  }
  static __device__ __forceinline__ float to_f32(std::uint16_t bits) { return ptx::cvt_f32_f16(bits); }
  static __device__ __forceinline__ std::uint32_t pair(float low, float high) {
    return ptx::cvt_rn_f16x2(low, high);
  }
};

/// to_f32 and pair are for a bf16 output.
struct Plain8 {
  static constexpr int kBytes = 1;
  static constexpr bool kScaled = true;
  static __device__ __forceinline__ float to_f32(std::uint16_t bits) { return Bf16::to_f32(bits); }
  static __device__ __forceinline__ std::uint32_t pair(float low, float high) {
    return Bf16::pair(low, high);
  }
};

/// The tensor cores keep some 14 bits of a sum of 8-bit floats, so they sum at most 128 inputs, as cuBLAS
/// does without fast accumulation.
struct E4m3 : Plain8 {
  using Sum = float;
  static constexpr DType kDtype = DType::f8e4m3;
  static constexpr bool kPromoted = true;
  template <int, int kSums>
  static __device__ __forceinline__ void mma(float (&d)[kSums], std::uint64_t a, std::uint64_t b,
                                             std::uint32_t metadata, bool add) {
    ptx::wgmma_sp_e4m3<0>(d, a, b, metadata, add);
  }
};

/// For callers who accept the tensor cores' precision of sums (torch's use_fast_accum).
struct FastE4m3 : E4m3 {
  static constexpr bool kPromoted = false;
};

struct I8 : Plain8 {
  using Sum = std::int32_t;
  static constexpr DType kDtype = DType::i8;
  static constexpr bool kPromoted = false;
  template <int, int kSums>
  static __device__ __forceinline__ void mma(std::int32_t (&d)[kSums], std::uint64_t a, std::uint64_t b,
                                             std::uint32_t metadata, bool add) {
    ptx::wgmma_sp_s8<0>(d, a, b, metadata, add);
  }
};

/// The bias of one output, or 0.
template <class Element>
__device__ __forceinline__ float bias_of(const void* bias, bool in_f32, std::int32_t output) {
  if (bias == nullptr) return 0.0f;
  if constexpr (Element::kScaled) {
    if (in_f32) return ptx::ld_global(static_cast<const float*>(bias) + output);
  }
  return Element::to_f32(ptx::ld_global(static_cast<const std::uint16_t*>(bias) + output));
}

}  // namespace sparseloom::kernels::cuda::semi24
