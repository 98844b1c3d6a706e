// The operand types of the Hopper kernels: one tag each, with its products by wgmma.
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

}  // namespace sparseloom::kernels::cuda::attention
