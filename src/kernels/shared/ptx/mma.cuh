// d[16][8] += a[16][k] b[k][8] on tensor cores, by one warp, with fp32 sums. With g = lane / 4 and q = lane %
// 4 a lane holds these elements (row, column):
//
//   d[0..3]                (g, 2q) (g, 2q + 1) (g + 8, 2q) (g + 8, 2q + 1)
//   16-bit, k = 16  a[0]   (g, 2q) and (g, 2q + 1), lower half first
//                   a[1]   row + 8    a[2]  column + 8    a[3]  both
//                   b[0]   (2q, g) and (2q + 1, g)        b[1]  row + 8
//   tf32, k = 8     a[0]   (g, q)     a[1]  row + 8       a[2]  column + 4    a[3]  both
//                   b[0]   (q, g)     b[1]  row + 4
//
// So ldmatrix_x4 fills a from its four quarters of 8 rows x 16 bytes, in the order top left, bottom left, top
// right, bottom right. If b is stored as [8][k] (k contiguous), ldmatrix_x2 fills it from its two 16-byte
// columns; if b is stored as [16][8], ldmatrix_x2_trans fills it from its two halves of 8 rows.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace sparseloom::kernels::cuda::ptx {

__device__ __forceinline__ void mma_m16n8k16_bf16(float (&d)[4], const std::uint32_t (&a)[4],
                                                  std::uint32_t b0, std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void mma_m16n8k16_f16(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                                 std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, "
      "%1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// The operands are fp32 bit patterns of which the unit reads the upper 19 bits. Round them first
/// (cvt_rna_tf32).
__device__ __forceinline__ void mma_m16n8k8_tf32(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                                 std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, "
      "%1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Rounds to the nearest TF32 (10 explicit mantissa bits), ties away from zero. This halves the error of the
/// truncation that the unit itself would do.
__device__ __forceinline__ std::uint32_t cvt_rna_tf32(std::uint32_t f32_bits) {
  std::uint32_t rounded;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(__uint_as_float(f32_bits)));
  return rounded;
}

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
