// Loads of 8x8 matrices of 16-bit elements from shared memory, distributed over the warp as mma operands.
//
//   matrix i   8 rows of 16 bytes; lanes 8i .. 8i + 7 pass the addresses of its rows, aligned to 16 bytes
//              (x2 does not use the addresses of the other lanes)
//   result i   lane t gets the two elements [t / 4][2 (t % 4)] and [.. + 1] of matrix i, the first in the
//              lower half; with trans: the elements [2 (t % 4)][t / 4] and [.. + 1][t / 4]
//
// A row also holds 4 fp32: without trans, lane t then gets element [t / 4][t % 4], which is the TF32 operand
// layout. There is no bank conflict if the 8 addresses of a matrix fall into 8 different 16-byte columns of
// 128 bytes.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/shared/ptx/address.cuh"

namespace sparseloom::kernels::cuda::ptx {

__device__ __forceinline__ void ldmatrix_x2(std::uint32_t (&r)[2], std::uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(row)
               : "memory");
}

__device__ __forceinline__ void ldmatrix_x4(std::uint32_t (&r)[4], std::uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(row)
               : "memory");
}

__device__ __forceinline__ void ldmatrix_x2_trans(std::uint32_t (&r)[2], std::uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(row)
               : "memory");
}

__device__ __forceinline__ void ldmatrix_x4_trans(std::uint32_t (&r)[4], std::uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(row)
               : "memory");
}

}  // namespace sparseloom::kernels::cuda::ptx
