#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "kernels/semi24_linear/sm80/entries.h"
#include "kernels/semi24_linear/sm80/pruning/dominance.cuh"
#include "kernels/semi24_linear/sm80/pruning/elements.cuh"
#include "kernels/semi24_linear/sm80/pruning/exact.cuh"
#include "kernels/semi24_linear/sm80/pruning/tile_mask.cuh"
#include "kernels/shared/early_launch.cuh"

namespace sparseloom::kernels::cuda {
namespace semi24 {
namespace {

// The threads of a thread block: kChunks x kStrips, of 8 x 8 elements each.
constexpr int kChunks = 16, kStrips = 16, kThreads = kChunks * kStrips;
constexpr int kRows = kStrips * 8, kCols = kChunks * 8;

struct PruneParams {
  const void* w;
  Semi24Compressed out;
  std::int64_t rows, cols, stride;
  std::int64_t row_values, position_bytes, mask_bytes;  // of W
  std::int64_t transposed_values, transposed_bytes;     // a row of W^T
  unsigned col_tiles, minus_one;                        // minus_one: see Magnitudes
  bool vectors;  // w's rows begin at multiples of 16 bytes, and rows of values at multiples of two pairs
  bool transposed_vectors;  // the same of W^T's values, and rows of its positions at multiples of 8 bytes
};

/// Thread blocks that a multiprocessor should hold. With more, registers would spill.
template <class E, Semi24Pruning kPruning>
inline constexpr int kBlocksOf = sizeof(typename E::Word) == 4                   ? 1
                                 : kPruning == Semi24Pruning::transposable_exact ? 2
                                                                                 : 3;

/// Which elements stay; every lane of the warp calls it. `plain` implies that none of those is zero.
template <class E, Semi24Pruning kPruning>
__device__ __forceinline__ TilesMask chosen(const PruneParams& params, const Elements<typename E::Word>& w,
                                            bool& plain) {
  if constexpr (sizeof(typename E::Word) == 2) {
    if constexpr (kPruning == Semi24Pruning::transposable_exact) return exact<E>(w, plain);
    const Magnitudes magnitudes(w, E::kInfinity, params.minus_one);
    plain = magnitudes.plain;
    if constexpr (kPruning == Semi24Pruning::magnitude) return largest_of_rows(magnitudes);
    return greedy(magnitudes);
  } else {
    TilesMask kept = 0;
    plain = false;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      Tile tile;
#pragma unroll
      for (int i = 0; i < 16; ++i) tile[i] = magnitude_of<E>(w.at(i / 4, half * 4 + i % 4));
      const TileMask own = tile_mask<E, kPruning>(tile);
#pragma unroll
      for (int r = 0; r < 4; ++r) kept |= (own >> (4 * r) & 15u) << (8 * r + 4 * half);
    }
    return kept;
  }
}

/// Columns of W on their way to W^T: those of a thread's upper and lower four rows lie side by side, so that
/// a row of W^T has its groups in order. The swizzle is by chunks of 8 columns: the 16 chunks of half a warp
/// write to 16 places, and a row is read as it lies.
template <class Word>
struct TransposedTile {
  struct alignas(4 * sizeof(Word)) TwoPairs {
    Pair<Word> upper, lower;
  };
  TwoPairs values[kCols][kStrips];
  std::uint8_t positions[kStrips][kCols];  // of two groups

  __device__ __forceinline__ TwoPairs& at(int col, int strip) { return values[col][strip ^ col / 8]; }
};

/// Where a thread's next row goes, and how much of it. Pointers advance by rows: products of 64 bits for each
/// row cost more than the choice of a tile's elements.
template <class Word>
struct RowsOut {
  Pair<Word>* values;
  std::uint8_t *positions, *mask;
  unsigned inside, position_bits;  // of a row's mask, and of its positions
  int left;                        // rows of W
  bool whole;                      // both groups have columns, and their pairs are aligned

  __device__ __forceinline__ RowsOut(const PruneParams& params, std::int64_t row, std::int64_t col, int rows,
                                     bool vectors)
      : values(static_cast<Pair<Word>*>(params.out.values) + (row * params.row_values + col / 2) / 2),
        positions(params.out.positions + row * params.position_bytes + col / 8),
        mask(params.out.mask + row * params.mask_bytes + col / 8),
        inside(col + 8 <= params.cols ? 0xffu : (1u << (params.cols - min(col, params.cols))) - 1),
        position_bits(inside > 0xfu ? 0xffu : 0xfu),
        left(inside == 0 ? 0 : rows),
        whole(vectors) {}
};

/// Stores four rows of values, positions and mask.
template <class E>
__device__ __forceinline__ void store_rows(const PruneParams& params, RowsOut<typename E::Word>& out,
                                           const Elements<typename E::Word>& w, TilesMask kept,
                                           const Places& places) {
  using Word = typename E::Word;
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    if (r >= out.left) break;
    alignas(16) Pair<Word> pairs[2];
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) pairs[tile] = w.in_row(r, tile, places);
    if (out.whole) {
      if constexpr (sizeof(Pair<Word>) == 4)
        __stcs(reinterpret_cast<uint2*>(out.values), *reinterpret_cast<const uint2*>(pairs));
      else
        __stcs(reinterpret_cast<uint4*>(out.values), *reinterpret_cast<const uint4*>(pairs));
    } else {
      out.values[0] = pairs[0];
      if (out.inside > 0xfu) out.values[1] = pairs[1];
    }
    *out.positions = static_cast<std::uint8_t>(places.line_positions(r) & out.position_bits);
    *out.mask = static_cast<std::uint8_t>(kept >> (8 * r) & out.inside);
    out.values += params.row_values / 2;
    out.positions += params.position_bytes, out.mask += params.mask_bytes;
  }
  out.left -= 4;
}

/// Stores W^T: half a warp stores a row of values, a thread half a row of positions.
template <class Word>
__device__ __forceinline__ void store_transposed(const PruneParams& params, TransposedTile<Word>& tile,
                                                 std::int64_t first_row, std::int64_t first_col) {
  using TwoPairs = typename TransposedTile<Word>::TwoPairs;
  const std::int64_t groups = params.transposed_values / 2, first_group = first_row / 4;
  const int strip = threadIdx.x % kStrips;
  const std::int64_t group = first_group + 2 * strip;
  Pair<Word>* to_values = static_cast<Pair<Word>*>(params.out.transposed_values) +
                          (first_col + threadIdx.x / kStrips) * groups + group;
  const int cols = static_cast<int>(min(params.cols - first_col, std::int64_t{kCols}));
#pragma unroll 8
  for (int col = threadIdx.x / kStrips; col < kCols; col += kThreads / kStrips) {
    if (col < cols && group < groups) {
      const TwoPairs& two = tile.at(col, strip);
      if (params.transposed_vectors) {
        *reinterpret_cast<TwoPairs*>(to_values) = two;
      } else {
        to_values[0] = two.upper;
        if (group + 1 < groups) to_values[1] = two.lower;
      }
    }
    to_values += kThreads / kStrips * groups;
  }
  const int col = static_cast<int>(threadIdx.x) % kCols, half = static_cast<int>(threadIdx.x) / kCols;
  const std::int64_t out_row = first_col + col, first_byte = first_group / 2 + half * 8;
  if (out_row >= params.cols || first_byte >= params.transposed_bytes) return;
  std::uint8_t* const to = params.out.transposed_positions + out_row * params.transposed_bytes + first_byte;
  if (params.transposed_vectors && first_byte + 8 <= params.transposed_bytes) {
    std::uint32_t words[2] = {};
#pragma unroll
    for (int i = 0; i < 8; ++i)
      words[i / 4] |= std::uint32_t{tile.positions[half * 8 + i][col]} << (8 * (i % 4));
    *reinterpret_cast<uint2*>(to) = make_uint2(words[0], words[1]);
  } else {
    for (int i = 0; i < 8 && first_byte + i < params.transposed_bytes; ++i)
      to[i] = static_cast<std::uint8_t>(tile.positions[half * 8 + i][col] &
                                        (2 * (first_byte + i) + 1 < groups ? 0xffu : 0xfu));
  }
}

template <class E, Semi24Pruning kPruning, bool kTransposed>
__global__ void __launch_bounds__(kThreads, (kBlocksOf<E, kPruning>)) prune_kernel(const PruneParams params) {
  static_assert(kThreads == 2 * kCols, "two threads store the positions of a row of W^T");
  using Word = typename E::Word;
  __shared__ std::conditional_t<kTransposed, TransposedTile<Word>, char> turned;
  const int chunk = threadIdx.x % kChunks, strip = threadIdx.x / kChunks;
  const std::int64_t first_row = std::int64_t{blockIdx.x / params.col_tiles} * kRows,
                     first_col = std::int64_t{blockIdx.x % params.col_tiles} * kCols;
  const std::int64_t row = first_row + strip * 8, col = first_col + chunk * 8;
  const bool whole = params.vectors && col + 8 <= params.cols;

  const int rows = static_cast<int>(max(min(params.rows - row, std::int64_t{8}), std::int64_t{0}));

  Elements<Word> w[2];  // the upper and the lower four rows
  const Word* from = static_cast<const Word*>(params.w) + row * params.stride + col;
  if (whole && rows == 8) {
#pragma unroll
    for (int r = 0; r < 8; ++r, from += params.stride) w[r / 4].load(r % 4, from);
  } else {
#pragma unroll
    for (int r = 0; r < 8; ++r, from += params.stride)
#pragma unroll
      for (int c = 0; c < 8; ++c) w[r / 4].set(r % 4, c, r < rows && col + c < params.cols ? from[c] : 0);
  }

  RowsOut<Word> out(params, row, col, rows, whole);
  Pair<Word> columns[2][kTransposed ? 8 : 1];
  std::uint32_t column_positions[2][2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    bool plain;
    const TilesMask kept = chosen<E, kPruning>(params, w[half], plain);
    TilesMask stored = kept, stored_down = transposed(kept);
    // Each group of a plain tile has two nonzeros. The greedy choice may leave a tile with 7 elements.
    if (!plain || (kPruning == Semi24Pruning::transposable_greedy && __popc(kept) != 16)) {
      stored = kept & w[half].nonzero();
      stored_down = completed(transposed(stored)), stored = completed(stored);
      w[half].keep(kept);
    }
    store_rows<E>(params, out, w[half], kept, Places(stored));
    if constexpr (kTransposed) {
      const Places places(stored_down);
#pragma unroll
      for (int c = 0; c < 8; ++c) columns[half][c] = w[half].in_column(c, places);
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) column_positions[half][tile] = places.tile_positions(tile);
    }
  }

  if constexpr (kTransposed) {
#pragma unroll
    for (int c = 0; c < 8; ++c) turned.at(chunk * 8 + c, strip) = {columns[0][c], columns[1][c]};
    *reinterpret_cast<uint2*>(&turned.positions[strip][chunk * 8]) =
        make_uint2(column_positions[0][0] | column_positions[1][0] << 4,
                   column_positions[0][1] | column_positions[1][1] << 4);
    __syncthreads();
    store_transposed(params, turned, first_row, first_col);
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
      .minus_one = ~0u,
      .vectors =
          aligned(w.data, 16) && w.stride * bytes % 16 == 0 && aligned(out.values, 16) && groups % 2 == 0,
      .transposed_vectors =
          aligned(out.transposed_values, 16) && aligned(out.transposed_positions, 8) && groups_down % 16 == 0,
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
