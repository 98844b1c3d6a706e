// d[16][8] += a[16][8] b[8][8] on tensor cores with 16-bit operands. The layout is that of mma.cuh with half
// the k, so only a[0], a[1] and b[0] remain.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace sparseloom::kernels::cuda::ptx {

__device__ __forceinline__ void mma_m16n8k8_bf16(float (&d)[4], std::uint32_t a0, std::uint32_t a1,
                                                 std::uint32_t b) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(b));
}

__device__ __forceinline__ void mma_m16n8k8_f16(float (&d)[4], std::uint32_t a0, std::uint32_t a1,
                                                std::uint32_t b) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(b));
}

}  // namespace sparseloom::kernels::cuda::ptx
