// Transposes an 8x8 matrix of 16-bit elements that lies in one register of a warp.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace sparseloom::kernels::cuda::ptx {

/// In: lane t holds elements [t / 4][2 (t % 4)], [.. + 1], the lower one in the lower half. Out: [2 (t % 4)][t / 4], [.. + 1][t /
/// 4].
__device__ __forceinline__ std::uint32_t movmatrix_trans(std::uint32_t rows) {
  std::uint32_t columns;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(columns) : "r"(rows));
  return columns;
}

}  // namespace sparseloom::kernels::cuda::ptx
