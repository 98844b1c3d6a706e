// Selections that decide each element as they read it: one pass, without workspace.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "core/mix64.h"
#include "kernels/shared/early_launch.cuh"
#include "kernels/shared/sparsify/reader.cuh"

namespace sparseloom::kernels::cuda::sparsify {

/// A selection has bits(i, unit): the elements of the unit beginning at element i that stay.
struct All {
  static constexpr bool kReads = false;  // it does not look at the elements
  bool stays;
  template <class U>
  __device__ unsigned bits(std::int64_t, const U&) const {
    return stays ? ~0u : 0u;
  }
};

/// Like drawn_to_stay (sparsifiers/streaming.h): bits * 2^-53 >= fraction, over integers.
struct Drawn {
  static constexpr bool kReads = false;
  std::uint64_t seed, least;
  template <class U>
  __device__ unsigned bits(std::int64_t i, const U&) const {
    unsigned stay = 0;
#pragma unroll
    for (int e = 0; e < U::kCount; ++e) {
      const std::uint64_t counter = static_cast<std::uint64_t>(i) + static_cast<unsigned>(e) + 1;
      stay |= static_cast<unsigned>(core::mix64(seed + counter * core::kGoldenGamma) >> 11 >= least) << e;
    }
    return stay;
  }
};

template <class E>
struct Above {
  static constexpr bool kReads = true;
  typename E::Key threshold;
  template <class U>
  __device__ unsigned bits(std::int64_t, const U& unit) const {
    unsigned stay = 0;
#pragma unroll
    for (int e = 0; e < U::kCount; ++e)
      stay |= static_cast<unsigned>(key_of<E>(unit.element[e]) > threshold) << e;
    return stay;
  }
};

/// The elements of blocks [rows, cols] whose byte in `chosen` is not zero.
struct InBlocks {
  static constexpr bool kReads = false;
  const std::uint8_t* chosen;
  std::int64_t rows, cols, block_rows, block_cols, across;  // across: blocks in a row of blocks
  template <class U>
  __device__ unsigned bits(std::int64_t i, const U&) const {
    std::int64_t row = quotient(i, cols), col = i - row * cols;
    std::int64_t block = quotient(col, block_cols), end = (block + 1) * block_cols;
    std::int64_t first = quotient(row, block_rows) * across;
    unsigned stay = 0;
#pragma unroll
    for (int e = 0; e < U::kCount; ++e, ++col) {
      if (col == cols) {
        ++row, col = 0, block = 0, end = block_cols, first = quotient(row, block_rows) * across;
      } else if (col == end) {
        ++block, end += block_cols;
      }
      // Elements past the end of the matrix have no block.
      if (e == 0 || row < rows) stay |= static_cast<unsigned>(chosen[first + block] != 0) << e;
    }
    return stay;
  }
};

template <class E, bool kVectors, class Stays>
__global__ void __launch_bounds__(kThreads)
    stream_kernel(const __grid_constant__ Matrix<E> matrix, const __grid_constant__ Stays stays,
                  std::int64_t tiles) {
  using R = Reader<E, kVectors>;
  R reader(matrix);
  const bool reads = Stays::kReads || matrix.values != nullptr;
  for (std::int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    typename R::U units[kEach<kVectors>] = {};
    if (reads) reader.load_tile(tile, units);
#pragma unroll
    for (int u = 0; u < kEach<kVectors>; ++u) {
      const std::int64_t i = R::place(tile, u);
      if (i < matrix.count()) reader.store(i, units[u], stays.bits(i, units[u]));
    }
  }
  reader.report();
}

/// Thread blocks of a kernel that walks over tiles.
inline unsigned blocks_for(std::int64_t tiles, int multiprocessors, int per_multiprocessor = 4) {
  return static_cast<unsigned>(
      std::min<std::int64_t>(tiles, std::int64_t{multiprocessors} * per_multiprocessor));
}

template <class E, class Stays>
cudaError_t launch_stream(const Matrix<E>& matrix, const Stays& stays, int multiprocessors,
                          cudaStream_t stream) {
  const bool vectors = has_vectors(matrix);
  const std::int64_t tiles = tiles_of<E>(matrix.count(), vectors);
  const LaunchShape shape{.grid = blocks_for(tiles, multiprocessors), .block = kThreads, .stream = stream};
  return vectors ? launch_kernel(shape, stream_kernel<E, true, Stays>, matrix, stays, tiles)
                 : launch_kernel(shape, stream_kernel<E, false, Stays>, matrix, stays, tiles);
}

// In stream.cu, for the others.
extern template cudaError_t launch_stream(const Matrix<F32>&, const All&, int, cudaStream_t);
extern template cudaError_t launch_stream(const Matrix<F16>&, const All&, int, cudaStream_t);
extern template cudaError_t launch_stream(const Matrix<Bf16>&, const All&, int, cudaStream_t);
extern template cudaError_t launch_stream(const Matrix<F64>&, const All&, int, cudaStream_t);

}  // namespace sparseloom::kernels::cuda::sparsify
