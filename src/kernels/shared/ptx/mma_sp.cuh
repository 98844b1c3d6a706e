// d[16][8] += a[16][32] b[32][8] of 16-bit elements on tensor cores, by one warp, where a is 2:4 and stores
// two of every four k of a row. d and a, in its 16 stored columns, are those of mma.cuh. With g = lane / 4
// and q = lane % 4 a lane holds of b[i] the elements (8 i + 2 q, g) and the next k, so that ldmatrix_x4 fills
// b from 64 contiguous bytes of [8][k]. The metadata is that of wgmma_sp.cuh, for 16 rows.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace sparseloom::kernels::cuda::ptx {

// The second name requires ascending positions; newer GPUs run the first one slowly.
#if __CUDACC_VER_MAJOR__ * 100 + __CUDACC_VER_MINOR__ < 1205
#define SPARSELOOM_MMA_SP "mma.sp"
#else
#define SPARSELOOM_MMA_SP "mma.sp::ordered_metadata"
#endif

template <int kSelector>
__device__ __forceinline__ void mma_sp_m16n8k32_bf16(float (&d)[4], const std::uint32_t (&a)[4],
                                                     const std::uint32_t (&b)[4], std::uint32_t metadata) {
  asm(SPARSELOOM_MMA_SP
      ".sync.aligned.m16n8k32.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9, %10, "
      "%11}, {%0, %1, %2, %3}, %12, %13;"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]), "r"(metadata),
        "n"(kSelector));
}

template <int kSelector>
__device__ __forceinline__ void mma_sp_m16n8k32_f16(float (&d)[4], const std::uint32_t (&a)[4],
                                                    const std::uint32_t (&b)[4], std::uint32_t metadata) {
  asm(SPARSELOOM_MMA_SP
      ".sync.aligned.m16n8k32.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9, %10, "
      "%11}, {%0, %1, %2, %3}, %12, %13;"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]), "r"(metadata),
        "n"(kSelector));
}

#undef SPARSELOOM_MMA_SP

}  // namespace sparseloom::kernels::cuda::ptx
