// The inverse of ldmatrix: stores 8x8 matrices of 16-bit elements to shared memory. Lanes 8i .. 8i + 7 pass
// the addresses of the rows of matrix i, aligned to 16 bytes. Lane t holds the elements [t / 4][2 (t % 4)]
// and [.. + 1] of each matrix, the first in the lower half.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace sparseloom::kernels::cuda::ptx {

__device__ __forceinline__ void stmatrix_x4(std::uint32_t row, const std::uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(r[0]),
               "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}

/// Stores each matrix transposed: lane t holds the elements [2 (t % 4)][t / 4] and [.. + 1][t / 4].
__device__ __forceinline__ void stmatrix_x4_trans(std::uint32_t row, const std::uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(r[0]),
               "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}

}  // namespace sparseloom::kernels::cuda::ptx
