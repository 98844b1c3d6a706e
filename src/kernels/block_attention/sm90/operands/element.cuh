// Operands of the Hopper kernels: a tag for each type, with its products by wgmma, and tiles of tokens in
// shared memory, [head_dim / 64][tokens][128 bytes], swizzled as token maps write them.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/block_attention/cuda/element.cuh"
#include "kernels/shared/ptx/sm90/wgmma.cuh"
#include "kernels/shared/ptx/sm90/wgmma_rs.cuh"

namespace sparseloom::kernels::cuda::attention {

struct Bf16 : Bf16Element {
  /// Both operands in shared memory; MN-major where so said.
  template <bool kMnMajorB, bool kMnMajorA, int kSums>
  static __device__ __forceinline__ void mma(float (&d)[kSums], std::uint64_t a, std::uint64_t b, bool add) {
    ptx::wgmma_bf16<kMnMajorB, kMnMajorA>(d, a, b, add);
  }
  /// a in registers, b MN-major.
  template <int kSums>
  static __device__ __forceinline__ void mma_rs(float (&d)[kSums], const std::uint32_t (&a)[4],
                                                std::uint64_t b) {
    ptx::wgmma_rs_bf16<true>(d, a, b);
  }
};

struct F16 : F16Element {
  template <bool kMnMajorB, bool kMnMajorA, int kSums>
  static __device__ __forceinline__ void mma(float (&d)[kSums], std::uint64_t a, std::uint64_t b, bool add) {
    ptx::wgmma_f16<kMnMajorB, kMnMajorA>(d, a, b, add);
  }
  template <int kSums>
  static __device__ __forceinline__ void mma_rs(float (&d)[kSums], const std::uint32_t (&a)[4],
                                                std::uint64_t b) {
    ptx::wgmma_rs_f16<true>(d, a, b);
  }
};

/// The constant part of wgmma's descriptor of a tile whose k is head_dim (K-major). 16 elements of it are 32
/// bytes of a row; 64 are the next [tokens][128 bytes].
inline constexpr std::uint64_t kKMajorTile = ptx::wgmma_descriptor(ptx::Swizzle::bytes128, 1024, 0);
/// Of one whose k is tokens (MN-major). 16 tokens are 2048 bytes.
template <int kTokens>
inline constexpr std::uint64_t kMnMajorTile = ptx::wgmma_descriptor(ptx::Swizzle::bytes128, 1024,
                                                                    kTokens * 128);

}  // namespace sparseloom::kernels::cuda::attention
