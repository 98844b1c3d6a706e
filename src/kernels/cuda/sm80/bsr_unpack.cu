// dense[r, c] = values[i][r - bm * row(i), c - bn * col[i]] for every stored block i; zero elsewhere.
//
//   grid.x: one thread block per stored block          dense  . . # .
//   threads: stride over its bm x bn elements                 # . . .   block i: row by bisection of crow, column col[i]
//
// A copy of bit patterns, so one instance per element size serves every dtype.
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/unpack.h"

namespace sparseloom::kernels::cuda {
namespace {

struct Config {
  // Four warps: a 8x8 block still fills two of them, a 128x128 one takes 128 steps.
  static constexpr int kThreads = 128;
};

template <class Word>
struct Params {
  IndexView index;
  const Word* values;
  Word* dense;
  std::int64_t dense_stride;
};

/// Largest r with crow[r] <= i: the block row of stored block i, empty rows skipped.
__device__ std::int64_t row_of_block(const IndexView& index, std::int64_t block_rows, std::int64_t i) {
  std::int64_t low = 0, high = block_rows;
  while (high - low > 1) {
    const std::int64_t middle = (low + high) / 2;
    if (index.crow[middle] <= i) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

template <class Word>
__global__ void __launch_bounds__(Config::kThreads) unpack_kernel(const Params<Word> params, std::int64_t block_rows) {
  const IndexView& index = params.index;
  const std::int64_t i = blockIdx.x;
  const std::int64_t first_row = row_of_block(index, block_rows, i) * index.block.rows;
  const std::int64_t first_col = std::int64_t{index.col[i]} * index.block.cols;
  const int elements = index.block.rows * index.block.cols;
  const Word* source = params.values + i * elements;
  for (int e = threadIdx.x; e < elements; e += Config::kThreads) {
    const std::int64_t row = first_row + e / index.block.cols;
    const std::int64_t col = first_col + e % index.block.cols;
    if (row < index.rows && col < index.cols) params.dense[row * params.dense_stride + col] = source[e];  // ragged edges
  }
}

template <class Word>
cudaError_t launch(const IndexView& index, const void* values, const MatrixView& dense, cudaStream_t stream) {
  if (dense.rows == 0 || dense.cols == 0) return cudaSuccess;
  const cudaError_t cleared =
      cudaMemset2DAsync(dense.data, dense.stride * sizeof(Word), 0, dense.cols * sizeof(Word), dense.rows, stream);
  if (cleared != cudaSuccess || index.blocks == 0) return cleared;
  const Params<Word> params{index, static_cast<const Word*>(values), static_cast<Word*>(dense.data), dense.stride};
  unpack_kernel<<<static_cast<unsigned>(index.blocks), Config::kThreads, 0, stream>>>(params, index.block_rows());
  return cudaGetLastError();
}

}  // namespace

int sm80_bsr_unpack(const IndexView& index, const void* values, const MatrixView& dense, void* stream) noexcept {
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  switch (size_of(dense.dtype)) {
    case 2: return launch<std::uint16_t>(index, values, dense, cuda_stream);
    case 4: return launch<std::uint32_t>(index, values, dense, cuda_stream);
    default: return launch<std::uint64_t>(index, values, dense, cuda_stream);
  }
}

}  // namespace sparseloom::kernels::cuda
