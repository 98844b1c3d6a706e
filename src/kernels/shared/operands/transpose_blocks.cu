// Transposes fp32 blocks, a tile of 32 x 32 per thread block.
#include <cuda_runtime.h>

#include "kernels/shared/operands/transpose.h"

namespace sparseloom::kernels::cuda {
namespace {

constexpr int kSide = 32, kRows = 8;  // side of a thread block's tile; rows moved at a time

__global__ void __launch_bounds__(kSide* kRows)
    transpose(float* __restrict__ to, const float* __restrict__ from, const std::int32_t* __restrict__ slot,
              int rows, int cols) {
  __shared__ float tile[kSide][kSide + 1];
  const int across = cols / kSide, tiles = rows / kSide * across;
  const std::int64_t block = blockIdx.x / tiles, elements = std::int64_t{rows} * cols;
  const int row = static_cast<int>(blockIdx.x % tiles) / across * kSide;
  const int col = static_cast<int>(blockIdx.x % tiles) % across * kSide;
  const int x = threadIdx.x % kSide, y = threadIdx.x / kSide;
  from += slot[block] * elements;
  to += block * elements;
#pragma unroll
  for (int i = 0; i < kSide; i += kRows) tile[y + i][x] = from[(row + y + i) * cols + col + x];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kSide; i += kRows) to[(col + y + i) * rows + row + x] = tile[x][y + i];
}

}  // namespace

cudaError_t transpose_blocks(float* to, const float* from, const std::int32_t* slot, std::int64_t blocks,
                             BlockShape block, cudaStream_t stream) noexcept {
  const std::int64_t tiles = blocks * (block.rows / kSide) * (block.cols / kSide);
  if (tiles >= std::int64_t{1} << 31) return cudaErrorInvalidValue;  // 8 TB of values
  if (tiles > 0)
    transpose<<<static_cast<unsigned>(tiles), kSide * kRows, 0, stream>>>(to, from, slot, block.rows,
                                                                          block.cols);
  return cudaGetLastError();
}

}  // namespace sparseloom::kernels::cuda
