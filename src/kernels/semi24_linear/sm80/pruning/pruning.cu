#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/semi24_linear/sm80/entries.h"
#include "kernels/semi24_linear/sm80/pruning/elements.cuh"
#include "kernels/semi24_linear/sm80/pruning/tile_mask.cuh"
#include "kernels/shared/early_launch.cuh"

namespace sparseloom::kernels::cuda {
namespace semi24 {
namespace {

// The threads of a thread block: kChunks x kStrips, of two tiles each.
constexpr int kChunks = 16, kStrips = 16, kThreads = kChunks * kStrips;
constexpr int kRows = kStrips * 4, kCols = kChunks * 8;

struct PruneParams {
  const void* w;
  Semi24Compressed out;
  std::int64_t rows, cols, stride;
  std::int64_t row_values, position_bytes, mask_bytes;  // of W
  std::int64_t transposed_values, transposed_bytes;     // a row of W^T
  unsigned col_tiles;
  bool vectors;  // w's rows begin at multiples of 16 bytes, and rows of values at multiples of two pairs
};

/// The positions of a group whose nonzeros are `bits`, at most two of four: those, and the lowest free ones.
__device__ __forceinline__ unsigned positions_of(unsigned bits) {
  // 4 bits for each value of `bits`: 0 to 3 have 0 and 1; three and more do not occur.
  constexpr std::uint64_t kOf = 0x000e'0dcc'0988'4444ull;
  return static_cast<unsigned>(kOf >> (bits * 4)) & 15u;
}
/// Thread blocks that a multiprocessor should hold. With more, the exact choice and fp32 would spill
/// registers.
template <class E, Semi24Pruning kPruning>
inline constexpr int kBlocksOf = sizeof(typename E::Word) == 4 || kPruning
                                                                      == Semi24Pruning::transposable_exact
                                     ? 1
                                     : 4;

template <class E, Semi24Pruning kPruning, bool kTransposed>
__global__ void __launch_bounds__(kThreads, (kBlocksOf<E, kPruning>)) prune_kernel(const PruneParams params) {
  using Word = typename E::Word;
  // Pairs and positions of W^T: a row per column of W.
  __shared__ Pair<Word> transposed[kTransposed ? kCols : 1][kStrips + 1];
  __shared__ std::uint8_t turned_positions[kTransposed ? kCols : 1][kStrips + 4];
  const int chunk = threadIdx.x % kChunks, strip = threadIdx.x / kChunks;
  const std::int64_t first_row = std::int64_t{blockIdx.x / params.col_tiles} * kRows,
                     first_col = std::int64_t{blockIdx.x % params.col_tiles} * kCols;
  const std::int64_t row = first_row + strip * 4, col = first_col + chunk * 8;
  const bool whole = params.vectors && col + 8 <= params.cols;

  Elements<Word> w;
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const Word* const from = static_cast<const Word*>(params.w) + (row + r) * params.stride + col;
    if (whole && row + r < params.rows) {
      w.load(r, from);
    } else {
#pragma unroll
      for (int c = 0; c < 8; ++c) w.set(r, c, row + r < params.rows && col + c < params.cols ? from[c] : 0);
    }
  }

  TileMask kept[2], nonzero[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    Tile tile;
    TileMask bits = 0;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const std::uint32_t element = w.at(i / 4, half * 4 + i % 4);
      tile[i] = magnitude_of<E>(element);
      bits |= static_cast<TileMask>(tile[i] != 0) << i;  // -0 is zero, NaN is not
    }
    kept[half] = tile_mask<E, kPruning>(tile);
    nonzero[half] = kept[half] & bits;
    w.keep(half, kept[half]);
  }

#pragma unroll
  for (int r = 0; r < 4; ++r) {
    if (row + r >= params.rows || col >= params.cols) break;
    alignas(16) Pair<Word> pairs[2];
    unsigned positions[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      positions[half] = positions_of(nonzero[half] >> (4 * r) & 15u);
      pairs[half] = w.in_row(r, half, positions[half]);
    }
    const bool both = col + 4 < params.cols;  // the second group has columns
    Pair<Word>* const to =
        static_cast<Pair<Word>*>(params.out.values) + ((row + r) * params.row_values + col / 2) / 2;
    if (whole) {
      if constexpr (sizeof(Pair<Word>) == 4)
        __stcs(reinterpret_cast<uint2*>(to), *reinterpret_cast<const uint2*>(pairs));
      else
        __stcs(reinterpret_cast<uint4*>(to), *reinterpret_cast<const uint4*>(pairs));
    } else {
      to[0] = pairs[0];
      if (both) to[1] = pairs[1];
    }
    params.out.positions[(row + r) * params.position_bytes + col / 8] =
        static_cast<std::uint8_t>(positions[0] | (both ? positions[1] << 4 : 0u));
    const unsigned inside = col + 8 <= params.cols ? 0xffu : (1u << (params.cols - col)) - 1;
    params.out.mask[(row + r) * params.mask_bytes + col / 8] =
        static_cast<std::uint8_t>(((kept[0] >> (4 * r) & 15u) | (kept[1] >> (4 * r) & 15u) << 4) & inside);
  }

  if constexpr (kTransposed) {
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      const TileMask of = nonzero[c / 4] >> (c % 4);
      const unsigned bits = (of & 1u) | (of >> 3 & 2u) | (of >> 6 & 4u) | (of >> 9 & 8u);
      const unsigned positions = positions_of(bits);
      transposed[chunk * 8 + c][strip] = w.in_column(c, positions);
      turned_positions[chunk * 8 + c][strip] = static_cast<std::uint8_t>(positions);
    }
    __syncthreads();
    // Half a warp stores a row of W^T.
#pragma unroll 4
    for (int c = threadIdx.x / kStrips; c < kCols; c += kThreads / kStrips) {
      const int own = threadIdx.x % kStrips;
      const std::int64_t out_row = first_col + c, group = first_row / 4 + own;
      if (out_row >= params.cols || 4 * group >= params.rows) continue;
      static_cast<Pair<Word>*>(
          params.out.transposed_values)[out_row * (params.transposed_values / 2) + group] =
          transposed[c][own];
      if (own % 2 == 0) {
        const bool both = 4 * (group + 1) < params.rows;
        params.out.transposed_positions[out_row * params.transposed_bytes + group / 2] =
            static_cast<std::uint8_t>(turned_positions[c][own] |
                                      (both ? turned_positions[c][own + 1] << 4 : 0));
      }
    }
  }
}

template <class E, Semi24Pruning kPruning>
cudaError_t launch_pruning(const PruneParams& params, const LaunchShape& shape) {
  if constexpr (kPruning != Semi24Pruning::magnitude)
    if (params.out.transposed_values != nullptr)
      return launch_kernel(shape, prune_kernel<E, kPruning, true>, params);
  return launch_kernel(shape, prune_kernel<E, kPruning, false>, params);
}

template <class E>
cudaError_t launch_pruning(const PruneParams& params, Semi24Pruning pruning, const LaunchShape& shape) {
  switch (pruning) {
    case Semi24Pruning::magnitude: return launch_pruning<E, Semi24Pruning::magnitude>(params, shape);
    case Semi24Pruning::transposable_greedy:
      return launch_pruning<E, Semi24Pruning::transposable_greedy>(params, shape);
    case Semi24Pruning::transposable_exact:
      return launch_pruning<E, Semi24Pruning::transposable_exact>(params, shape);
  }
  return cudaErrorInvalidValue;
}

}  // namespace
}  // namespace semi24

int semi24_compress(const ConstMatrixView& w, Semi24Pruning pruning, const Semi24Compressed& out,
                    void* stream) noexcept {
  using namespace semi24;
  if (w.rows == 0 || w.cols == 0) return cudaSuccess;
  const std::int64_t groups = (w.cols + 3) / 4, groups_down = (w.rows + 3) / 4;
  const auto bytes = static_cast<std::int64_t>(size_of(w.dtype));
  const auto aligned = [](const void* at, std::uintptr_t to) {
    return reinterpret_cast<std::uintptr_t>(at) % to == 0;
  };
  const std::int64_t row_tiles = (w.rows + kRows - 1) / kRows, col_tiles = (w.cols + kCols - 1) / kCols;
  if (row_tiles * col_tiles >= std::int64_t{1} << 31) return cudaErrorInvalidValue;
  const PruneParams params{
      .w = w.data,
      .out = out,
      .rows = w.rows,
      .cols = w.cols,
      .stride = w.stride,
      .row_values = 2 * groups,
      .position_bytes = (groups + 1) / 2,
      .mask_bytes = (w.cols + 7) / 8,
      .transposed_values = 2 * groups_down,
      .transposed_bytes = (groups_down + 1) / 2,
      .col_tiles = static_cast<unsigned>(col_tiles),
      .vectors =
          aligned(w.data, 16) && w.stride * bytes % 16 == 0 && aligned(out.values, 16) && groups % 2 == 0,
  };
  const LaunchShape shape{.grid = static_cast<unsigned>(row_tiles * col_tiles),
                          .block = kThreads,
                          .stream = static_cast<cudaStream_t>(stream)};
  switch (w.dtype) {
    case DType::f32: return launch_pruning<F32Bits>(params, pruning, shape);
    case DType::f16: return launch_pruning<F16Bits>(params, pruning, shape);
    case DType::bf16: return launch_pruning<Bf16Bits>(params, pruning, shape);
    case DType::f64:
    case DType::i8:
    case DType::f8e4m3: break;
  }
  return cudaErrorInvalidValue;
}

}  // namespace sparseloom::kernels::cuda
