// values[i, t][r, c] = dense[bm * row(i) + r, t, bn * col[i] + c] for every stored block i and tap t (one,
// except for the weight of a convolution); elements outside dense are zero. A second entry point adds these
// to fp32 values instead.
//
//   grid.x: `parts` thread blocks per block row, which share the elements of its blocks, 16 bytes at a time
//
// Thread blocks are assigned to block rows rather than to blocks, so that none has to search crow. The kernel
// copies bit patterns: there is one instance per element size, and one for floats, which adds.
#include <cuda_runtime.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <type_traits>

#include "kernels/shared/bsr/pack.h"
#include "kernels/shared/vector.cuh"

namespace sparseloom::kernels::cuda {
namespace {

struct Config {
  static constexpr int kThreads = 256;
  // An average over the block rows: 16 KB per thread block hide its two dependent index loads.
  static constexpr int kVectorsPerThread = 4;
};

template <class Word>
struct Params {
  IndexView index;
  Word* values;
  const Word* dense;
  std::int64_t dense_stride;
  unsigned taps;
  unsigned parts;
  int row_shift, col_shift;  // log2 of the block's sides
  bool values_aligned;       // to 16 bytes; otherwise that operand is accessed element by element
  bool dense_aligned;
};

/// kCount elements of one tap of a row of dense, with zeros from column `cols` on.
template <class Word>
__device__ __forceinline__ Vector<Word> read_dense(const Params<Word>& params, std::int64_t row, unsigned tap,
                                                   std::int64_t col) {
  Vector<Word> vector = {};
  if (row >= params.index.rows || col >= params.index.cols) return vector;
  const Word* from = params.dense + row * params.dense_stride + tap * params.index.cols + col;
  if (params.dense_aligned && col + vector.kCount <= params.index.cols)
    return *reinterpret_cast<const Vector<Word>*>(from);
#pragma unroll
  for (int e = 0; e < vector.kCount; ++e)
    if (col + e < params.index.cols) vector.element[e] = from[e];
  return vector;
}

/// Bit patterns replace the old values; floats are added to them.
template <class Word>
__device__ __forceinline__ void write_values(const Params<Word>& params, Word* to, Vector<Word> vector) {
  if constexpr (std::is_same_v<Word, float>) {
    Vector<Word> before;
    if (params.values_aligned) {
      before = *reinterpret_cast<const Vector<Word>*>(to);
    } else {
#pragma unroll
      for (int e = 0; e < vector.kCount; ++e) before.element[e] = to[e];
    }
#pragma unroll
    for (int e = 0; e < vector.kCount; ++e) vector.element[e] += before.element[e];
  }
  if (params.values_aligned) {
    *reinterpret_cast<Vector<Word>*>(to) = vector;
  } else {
#pragma unroll
    for (int e = 0; e < vector.kCount; ++e) to[e] = vector.element[e];
  }
}

template <class Word>
__global__ void __launch_bounds__(Config::kThreads) pack_kernel(const __grid_constant__ Params<Word> params) {
  constexpr int kVectorShift = Vector<Word>::kShift;
  const std::int64_t block_row = blockIdx.x / params.parts;
  const std::int32_t begin = __ldg(params.index.crow + block_row),
                     end = __ldg(params.index.crow + block_row + 1);
  const int vectors_shift = params.row_shift + params.col_shift - kVectorShift;  // log2(vectors per block)
  const int across_shift = params.col_shift - kVectorShift;                      // log2(vectors per row)
  const std::int64_t first = std::int64_t{begin} * params.taps,
                     vectors = (std::int64_t{end - begin} * params.taps) << vectors_shift;
  const std::int64_t step = std::int64_t{params.parts} * Config::kThreads;
#pragma unroll 4
  for (std::int64_t v = blockIdx.x % params.parts * Config::kThreads + threadIdx.x; v < vectors; v += step) {
    const auto stored = static_cast<unsigned>(v >> vectors_shift);  // of this block row, its taps in order
    const unsigned block = params.taps == 1 ? stored : stored / params.taps,
                   tap = stored - block * params.taps;
    const int inside = static_cast<int>(v & ((1 << vectors_shift) - 1));
    const std::int64_t row = (block_row << params.row_shift) + (inside >> across_shift);
    const std::int64_t col = (std::int64_t{__ldg(params.index.col + begin + block)} << params.col_shift) +
                             ((inside & ((1 << across_shift) - 1)) << kVectorShift);
    const Vector<Word> vector = read_dense(params, row, tap, col);
    write_values(params, params.values + ((((first + stored) << vectors_shift) + inside) << kVectorShift),
                 vector);
  }
}

template <class Word>
cudaError_t launch(const ConstMatrixView& dense, const IndexView& index, std::int64_t taps, void* values,
                   cudaStream_t stream) {
  if (index.blocks == 0) return cudaSuccess;
  constexpr std::int64_t kPerThreadBlock =
      Config::kThreads * Config::kVectorsPerThread * Vector<Word>::kCount;
  Params<Word> params{index,
                      static_cast<Word*>(values),
                      static_cast<const Word*>(dense.data),
                      dense.stride,
                      static_cast<unsigned>(taps),
                      1,
                      0,
                      0,
                      false,
                      false};
  params.row_shift = std::countr_zero(static_cast<unsigned>(index.block.rows));
  params.col_shift = std::countr_zero(static_cast<unsigned>(index.block.cols));
  params.values_aligned = vector_aligned(values, 0);
  constexpr auto kSize = static_cast<std::int64_t>(sizeof(Word));
  params.dense_aligned = vector_aligned(dense.data, dense.stride * kSize) &&
                         (taps == 1 || vector_aligned(dense.data, index.cols * kSize));
  const std::int64_t elements = index.blocks * taps * index.block_elements();
  params.parts =
      static_cast<unsigned>(std::max<std::int64_t>(elements / (index.block_rows() * kPerThreadBlock), 1));
  const std::int64_t thread_blocks = index.block_rows() * params.parts;
  pack_kernel<<<static_cast<unsigned>(thread_blocks), Config::kThreads, 0, stream>>>(params);
  return cudaGetLastError();
}

}  // namespace

int sm80_bsr_pack(const ConstMatrixView& dense, const IndexView& index, std::int64_t taps, void* values,
                  void* stream) noexcept {
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  switch (size_of(dense.dtype)) {
    case 2: return launch<std::uint16_t>(dense, index, taps, values, cuda_stream);
    case 4: return launch<std::uint32_t>(dense, index, taps, values, cuda_stream);
    default: return launch<std::uint64_t>(dense, index, taps, values, cuda_stream);
  }
}

int sm80_bsr_add(const ConstMatrixView& dense, const IndexView& index, void* values, void* stream) noexcept {
  return launch<float>(dense, index, 1, values, static_cast<cudaStream_t>(stream));
}

}  // namespace sparseloom::kernels::cuda
