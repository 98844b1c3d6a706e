// Scores of blocks: their sums of magnitudes.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/shared/sparsify/reader.cuh"

namespace sparseloom::kernels::cuda::sparsify {

struct Blocks {
  std::int64_t rows, cols;   // extent of a block
  std::int64_t across, all;  // blocks in a row of blocks, and in the matrix
};

/// scores <- the sums, rounded to fp32. kGroup threads take a block: kThreads, or at most a warp. Each adds
/// every kGroup'th element of its block in fp64, and their sums are added pairwise: the same in every call,
/// but not in the order of the CPU, whose fp64 sums may differ in their last bits.
template <class E, int kGroup>
__global__ void __launch_bounds__(kThreads, 2)
    score_kernel(const __grid_constant__ Matrix<E> matrix, const __grid_constant__ Blocks blocks,
                 float* scores) {
  constexpr int kGroups = kThreads / kGroup;
  __shared__ double sums[kWarps];
  const unsigned member = threadIdx.x % kGroup;
  Reader<E, false> reader(matrix);
  // All threads stay in the loop together, because they reduce together.
  for (std::int64_t first = std::int64_t{blockIdx.x} * kGroups; first < blocks.all;
       first += std::int64_t{gridDim.x} * kGroups) {
    const std::int64_t block = first + threadIdx.x / kGroup;
    double sum = 0;
    if (block < blocks.all) {
      const std::int64_t down = quotient(block, blocks.across), row = down * blocks.rows,
                         col = (block - down * blocks.across) * blocks.cols;
      const std::int64_t height = min(blocks.rows, matrix.rows - row),
                         width = min(blocks.cols, matrix.cols - col);
      const unsigned step = static_cast<unsigned>(min(width, std::int64_t{kGroup} + 1));
      std::int64_t r = member / step, c = member % step;
      const unsigned rows_each = kGroup / step, cols_each = kGroup % step;
#pragma unroll 4
      while (r < height) {
        sum += E::value(key_of<E>(reader.load_at(row + r, col + c)));
        r += rows_each, c += cols_each;
        if (c >= width) c -= width, ++r;
      }
    }
#pragma unroll
    for (int distance = (kGroup < 32 ? kGroup : 32) / 2; distance > 0; distance /= 2)
      sum += __shfl_xor_sync(kWarp, sum, distance);
    if constexpr (kGroup == kThreads) {
      __syncthreads();  // the sums of the block before have been read
      if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
      __syncthreads();
      sum = 0;
      for (int w = 0; w < kWarps; ++w) sum += sums[w];
    }
    if (member == 0 && block < blocks.all) scores[block] = static_cast<float>(sum);
  }
  reader.report();
}

}  // namespace sparseloom::kernels::cuda::sparsify
