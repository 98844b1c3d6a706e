// dense[r, t, c] = values[i, t][r - bm * row(i), c - bn * col[i]] for every stored block i and tap t (one,
// except for the weight of a convolution); zero elsewhere. Each element is written once.
//
//   grid.x: one thread block per slice of a tap of a block row; 16384 elements, e.g. 1024 columns for bm = 16
//   shared memory: the stored block at each block column of the slice
//   warp: patches of 4 rows x 8 vectors of 16 bytes
//
// So a warp writes whole cache lines of 128 bytes. It also reads whole lines if blocks are at least 32 bytes
// wide, since the rows of a block are contiguous. Rejected: patches of one row x 32 vectors, which read a
// block of 16 columns 32 bytes at a time; each such read costs L2 as much as a cache line. Values are read
// with an evict-first policy: the following product needs dense in L2, not the values.
//
// The kernel copies bit patterns, so one instance per element size serves every dtype; 8-bit blocks that are
// 8 wide take vectors of 8 bytes. Rejected: a memset before the kernel, which would write most of dense twice
// and add the host overhead of a second launch.
#include <cuda_runtime.h>

#include <bit>
#include <cstdint>
#include <type_traits>

#include "kernels/shared/bsr/pack.h"
#include "kernels/shared/vector.cuh"

namespace sparseloom::kernels::cuda {
namespace {

struct Config {
  static constexpr int kThreads = 256;
  static constexpr int kSliceElements = 16384;             // 4096 x 4096: 1024 thread blocks
  static constexpr int kResident = 5;                      // resident thread blocks per SM; 6 would spill
  static constexpr int kLoads = 4;                         // in flight per thread
  static constexpr int kMostBlocks = kSliceElements / 64;  // blocks of 8 x 8 in a slice
};

/// kBytes: size of a vector, at most a row of a block.
template <class Element, int kBytes>
struct Params {
  using Word = Element;
  using Words = Vector<Word, kBytes>;
  using Raw = std::conditional_t<kBytes == 16, uint4, uint2>;
  IndexView index;
  const Word* values;
  Word* dense;
  std::int64_t dense_stride;
  unsigned taps;
  unsigned slices;           // slices per tap and block row
  int slice_shift;           // log2(columns of a slice)
  int row_shift, col_shift;  // log2 of the block's sides
  bool values_aligned;       // to 16 bytes; otherwise that operand is accessed element by element
  bool dense_aligned;
};

/// slot[b] = the stored block at block column first_block + b of this block row, or -1.
template <class Params>
__device__ __forceinline__ void find_blocks(const Params& params, std::int64_t block_row,
                                            std::int64_t first_block, int blocks, std::int32_t* slot) {
  for (int b = threadIdx.x; b < blocks; b += Config::kThreads) slot[b] = -1;
  const std::int32_t begin = __ldg(params.index.crow + block_row),
                     end = __ldg(params.index.crow + block_row + 1);
  __syncthreads();
  for (std::int32_t i = begin + threadIdx.x; i < end; i += Config::kThreads) {
    const std::int64_t b = __ldg(params.index.col + i) - first_block;
    if (b >= 0 && b < blocks) slot[b] = i;
  }
  __syncthreads();
}

/// Position of a vector in a slice.
struct Place {
  int row, col;
};

/// Position of this lane's vector in patch `patch`. Patches are numbered along the rows.
template <class Params>
__device__ __forceinline__ Place place_of(const Params& params, int patch) {
  constexpr int kShift = Params::Words::kShift;
  const int shift = params.slice_shift - kShift - 3;  // log2(patches across)
  const int lane = threadIdx.x % 32;
  return {(patch >> shift) * 4 + lane / 8, ((patch & ((1 << shift) - 1)) * 8 + lane % 8) << kShift};
}

template <class Params>
__device__ __forceinline__ typename Params::Words load(const Params& params, const std::int32_t* slot,
                                                       unsigned tap, Place place) {
  using Word = typename Params::Word;
  using Raw = typename Params::Raw;
  typename Params::Words vector = {};
  const std::int32_t i = slot[place.col >> params.col_shift];
  if (i < 0) return vector;
  const std::int64_t stored = std::int64_t{i} * params.taps + tap;
  const Word* from = params.values + (stored << (params.row_shift + params.col_shift)) +
                     (place.row << params.col_shift) + (place.col & ((1 << params.col_shift) - 1));
  if (params.values_aligned) {
    *reinterpret_cast<Raw*>(&vector) = __ldcs(reinterpret_cast<const Raw*>(from));
    return vector;
  }
#pragma unroll
  for (int e = 0; e < vector.kCount; ++e) vector.element[e] = from[e];
  return vector;
}

template <class Params>
__device__ __forceinline__ void store(const Params& params, std::int64_t row, unsigned tap, std::int64_t col,
                                      const typename Params::Words& vector) {
  using Word = typename Params::Word;
  if (row >= params.index.rows || col >= params.index.cols) return;  // ragged edges
  Word* to = params.dense + row * params.dense_stride + tap * params.index.cols + col;
  if (params.dense_aligned && col + vector.kCount <= params.index.cols) {
    *reinterpret_cast<typename Params::Words*>(to) = vector;
    return;
  }
#pragma unroll
  for (int e = 0; e < vector.kCount; ++e)
    if (col + e < params.index.cols) to[e] = vector.element[e];
}

template <class Params>
__global__ void __launch_bounds__(Config::kThreads, Config::kResident)
    unpack_kernel(const __grid_constant__ Params params) {
  constexpr int kPatches = Config::kSliceElements / (32 * Params::Words::kCount),
                kWarps = Config::kThreads / 32;
  static_assert(kPatches % (kWarps * Config::kLoads) == 0,
                "patches must divide evenly among warps and loads");
  __shared__ std::int32_t slot[Config::kMostBlocks];
  const unsigned tap = blockIdx.x / params.slices % params.taps;
  const std::int64_t block_row = blockIdx.x / params.slices / params.taps;
  const std::int64_t first_row = block_row << params.row_shift;
  const std::int64_t first_col = std::int64_t{blockIdx.x % params.slices} << params.slice_shift;
  find_blocks(params, block_row, first_col >> params.col_shift, 1 << (params.slice_shift - params.col_shift),
              slot);

#pragma unroll 1
  for (int patch = threadIdx.x / 32; patch < kPatches; patch += kWarps * Config::kLoads) {
    typename Params::Words vectors[Config::kLoads];
#pragma unroll
    for (int u = 0; u < Config::kLoads; ++u)
      vectors[u] = load(params, slot, tap, place_of(params, patch + u * kWarps));
#pragma unroll
    for (int u = 0; u < Config::kLoads; ++u) {
      const Place place = place_of(params, patch + u * kWarps);
      store(params, first_row + place.row, tap, first_col + place.col, vectors[u]);
    }
  }
}

template <class Word, int kBytes = 16>
cudaError_t launch(const IndexView& index, std::int64_t taps, const void* values, const MatrixView& dense,
                   cudaStream_t stream) {
  if (index.rows == 0 || index.cols == 0) return cudaSuccess;
  Params<Word, kBytes> params{index,
                              static_cast<const Word*>(values),
                              static_cast<Word*>(dense.data),
                              dense.stride,
                              static_cast<unsigned>(taps),
                              0,
                              0,
                              0,
                              0,
                              false,
                              false};
  params.row_shift = std::countr_zero(static_cast<unsigned>(index.block.rows));
  params.col_shift = std::countr_zero(static_cast<unsigned>(index.block.cols));
  params.slice_shift = std::countr_zero(static_cast<unsigned>(Config::kSliceElements)) - params.row_shift;
  params.slices = static_cast<unsigned>((index.cols - 1) >> params.slice_shift) + 1;
  params.values_aligned = vector_aligned(values, 0);
  constexpr auto kSize = static_cast<std::int64_t>(sizeof(Word));
  params.dense_aligned = vector_aligned(dense.data, dense.stride * kSize) &&
                         (taps == 1 || vector_aligned(dense.data, index.cols * kSize));
  const std::int64_t thread_blocks = index.block_rows() * taps * params.slices;
  unpack_kernel<<<static_cast<unsigned>(thread_blocks), Config::kThreads, 0, stream>>>(params);
  return cudaGetLastError();
}

}  // namespace

int sm80_bsr_unpack(const IndexView& index, std::int64_t taps, const void* values, const MatrixView& dense,
                    void* stream) noexcept {
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  switch (size_of(dense.dtype)) {
    case 1:
      return index.block.cols == 8 ? launch<std::uint8_t, 8>(index, taps, values, dense, cuda_stream)
                                   : launch<std::uint8_t>(index, taps, values, dense, cuda_stream);
    case 2: return launch<std::uint16_t>(index, taps, values, dense, cuda_stream);
    case 4: return launch<std::uint32_t>(index, taps, values, dense, cuda_stream);
    default: return launch<std::uint64_t>(index, taps, values, dense, cuda_stream);
  }
}

}  // namespace sparseloom::kernels::cuda
