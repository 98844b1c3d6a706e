// The 16-bit types: how wgmma.sp multiplies them, and how results are rounded to them.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/shared/ptx/convert.cuh"
#include "kernels/shared/ptx/sm90/wgmma_sp.cuh"
#include "sparseloom/dtype.h"

namespace sparseloom::kernels::cuda::semi24 {

struct Bf16 {
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

struct F16 {
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

}  // namespace sparseloom::kernels::cuda::semi24
