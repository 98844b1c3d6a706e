// The three prunings to 2:4, a group or a tile of 4 x 4 at a time.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "layout/semi24.h"
#include "layout/semi24_patterns.h"
#include "sparseloom/generic/half.h"

namespace sparseloom::layout {
namespace {

double magnitude_of(double x) {
  return std::isnan(x) ? std::numeric_limits<double>::infinity() : std::fabs(x);
}
double magnitude_of(float x) { return magnitude_of(static_cast<double>(x)); }
double magnitude_of(core::F16 x) { return magnitude_of(core::to_f32(x)); }
double magnitude_of(core::Bf16 x) { return magnitude_of(core::to_f32(x)); }

/// Magnitudes of a tile, row-major, zero past the matrix.
using Tile = std::array<double, 16>;
template <class T>
Tile tile_at(const ConstMatrixView& w, std::int64_t row, std::int64_t col) {
  Tile tile{};
  for (std::int64_t r = 0; r < std::min<std::int64_t>(4, w.rows - row); ++r) {
    const T* const from = static_cast<const T*>(w.data) + (row + r) * w.stride + col;
    for (std::int64_t c = 0; c < std::min<std::int64_t>(4, w.cols - col); ++c)
      tile[static_cast<std::size_t>(4 * r + c)] = magnitude_of(from[c]);
  }
  return tile;
}

Semi24TileMask largest_of_rows(const Tile& tile) {
  Semi24TileMask kept = 0;
  for (unsigned row = 0; row < 16; row += 4) {
    unsigned first = 0, second = 1;  // positions of the largest and of the next one
    if (tile[row + 1] > tile[row]) std::swap(first, second);
    for (unsigned i = 2; i < 4; ++i) {
      if (tile[row + i] > tile[row + first])
        second = first, first = i;
      else if (tile[row + i] > tile[row + second])
        second = i;
    }
    kept |= (1u << first | 1u << second) << row;
  }
  return kept;
}

Semi24TileMask greedy(const Tile& tile) {
  constexpr unsigned kRow = 0xf, kColumn = 0x1111;
  Semi24TileMask kept = 0, closed = 0;  // closed: taken, or in a row or column without room
  while (closed != 0xffff) {
    unsigned best = static_cast<unsigned>(std::countr_one(closed));
    for (unsigned i = best + 1; i < 16; ++i)
      if ((closed >> i & 1u) == 0 && tile[i] > tile[best]) best = i;
    kept |= 1u << best, closed |= 1u << best;
    const unsigned row = kRow << (best & 12u), column = kColumn << (best & 3u);
    if (std::popcount(kept & row) == 2) closed |= row;
    if (std::popcount(kept & column) == 2) closed |= column;
  }
  return kept;
}

Semi24TileMask exact(const Tile& tile) {
  double of_row[4][6], of_half[2][36];
  for (unsigned row = 0; row < 4; ++row)
    for (unsigned p = 0; p < 6; ++p)
      of_row[row][p] = tile[4 * row + static_cast<unsigned>(std::countr_zero(kSemi24Pairs[p]))] +
                       tile[4 * row + static_cast<unsigned>(std::bit_width(kSemi24Pairs[p])) - 1];
  for (unsigned half = 0; half < 2; ++half)
    for (unsigned p = 0; p < 36; ++p)
      of_half[half][p] = of_row[2 * half][p % 6] + of_row[2 * half + 1][p / 6];
  double most = -1;
  Semi24TileMask kept = 0;
  for (const Semi24Pattern& pattern : kSemi24Patterns.of) {
    const double sum =
        of_half[0][pattern.pair[0] + 6 * pattern.pair[1]] + of_half[1][pattern.pair[2] + 6 * pattern.pair[3]];
    if (sum > most) most = sum, kept = pattern.mask;
  }
  return kept;
}

template <class T, class Keep>
void prune_tiles(const ConstMatrixView& w, bool* mask, std::int64_t begin, std::int64_t end, Keep keep) {
  for (std::int64_t row = begin; row < end; row += 4)
    for (std::int64_t col = 0; col < w.cols; col += 4) {
      const Semi24TileMask kept = keep(tile_at<T>(w, row, col));
      for (std::int64_t r = 0; r < std::min<std::int64_t>(4, end - row); ++r)
        for (std::int64_t c = 0; c < std::min<std::int64_t>(4, w.cols - col); ++c)
          mask[(row + r) * w.cols + col + c] = (kept >> (4 * r + c) & 1u) != 0;
    }
}

template <class T>
void prune(const ConstMatrixView& w, Semi24Pruning pruning, bool* mask, std::int64_t begin,
           std::int64_t end) {
  switch (pruning) {
    case Semi24Pruning::magnitude: return prune_tiles<T>(w, mask, begin, end, largest_of_rows);
    case Semi24Pruning::transposable_greedy: return prune_tiles<T>(w, mask, begin, end, greedy);
    case Semi24Pruning::transposable_exact: return prune_tiles<T>(w, mask, begin, end, exact);
  }
}

}  // namespace

void prune_rows(const ConstMatrixView& w, Semi24Pruning pruning, bool* mask, std::int64_t begin,
                std::int64_t end) {
  switch (w.dtype) {
    case DType::f32: return prune<float>(w, pruning, mask, begin, end);
    case DType::f16: return prune<core::F16>(w, pruning, mask, begin, end);
    case DType::bf16: return prune<core::Bf16>(w, pruning, mask, begin, end);
    case DType::f64: return prune<double>(w, pruning, mask, begin, end);
    case DType::i8:
    case DType::f8e4m3: break;
  }
}

}  // namespace sparseloom::layout
