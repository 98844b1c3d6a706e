// Sizes of a tile, the types, and the kernel's parameters.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/shared/ptx/convert.cuh"
#include "kernels/shared/ptx/mma_sp.cuh"
#include "sparseloom/activation.h"

namespace sparseloom::kernels::cuda::semi24_mma {

struct Bf16 {
  template <int kSelector>
  static __device__ __forceinline__ void mma(float (&d)[4], const std::uint32_t (&a)[4],
                                             const std::uint32_t (&b)[4], std::uint32_t metadata) {
    ptx::mma_sp_m16n8k32_bf16<kSelector>(d, a, b, metadata);
  }
  static __device__ __forceinline__ float to_f32(std::uint16_t bits) { return ptx::cvt_f32_bf16(bits); }
  static __device__ __forceinline__ std::uint16_t round(float value) {
    return static_cast<std::uint16_t>(ptx::cvt_rn_bf16x2(value, 0.0f));
  }
};

struct F16 {
  template <int kSelector>
  static __device__ __forceinline__ void mma(float (&d)[4], const std::uint32_t (&a)[4],
                                             const std::uint32_t (&b)[4], std::uint32_t metadata) {
    ptx::mma_sp_m16n8k32_f16<kSelector>(d, a, b, metadata);
  }
  static __device__ __forceinline__ float to_f32(std::uint16_t bits) { return ptx::cvt_f32_f16(bits); }
  static __device__ __forceinline__ std::uint16_t round(float value) {
    return static_cast<std::uint16_t>(ptx::cvt_rn_f16x2(value, 0.0f));
  }
};

/// kWarpsM x kWarpsK warps, each of which multiplies 32 rows of W by all kTokens tokens, 64 columns of every
/// K tile. If there are few rows, warps along K keep all multiprocessors busy.
template <class Element_, int kWarpsM_, int kWarpsK_, int kTokens_>
struct Tile {
  using Element = Element_;
  static constexpr int kWarpsM = kWarpsM_, kWarpsK = kWarpsK_, kTokens = kTokens_;
  static constexpr int kThreads = kWarpsM * kWarpsK * 32, kRows = kWarpsM * 32, kCols = kWarpsK * 64;
  static constexpr int kStages = 4;
  /// Per stage and warp along K: W's rows of 32 values and x's rows of 64.
  static constexpr int kWeightBytes = kRows * 64, kXBytes = kTokens * 128;
  static constexpr int kXAt = kWarpsK * kWeightBytes, kStageBytes = kXAt + kWarpsK * kXBytes;
  /// At the end of the tile the sums of each warp along K overwrite the stages.
  static constexpr int kSumsStride = kRows + 4;
  static constexpr int kSumsBytes = kWarpsK * kTokens * kSumsStride * 4;
  static constexpr int kSharedBytes = kStages * kStageBytes;
  static_assert(kSumsBytes <= kSharedBytes, "the sums must fit in the ring");
};

struct Params {
  const std::byte *values, *x;
  const std::uint32_t* metadata;
  const std::uint16_t *bias, *residual;
  std::uint16_t* out;
  std::int64_t stored, x_stride, out_stride, residual_stride;  // elements; stored: values per row
  std::int32_t rows, cols, tokens;
  std::int32_t metadata_rows, metadata_cols;  // tiles
  Activation activation;
  bool aligned;  // rows of values and x may be read 16 bytes at a time
};

}  // namespace sparseloom::kernels::cuda::semi24_mma
