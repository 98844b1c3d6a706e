// Magnitude and greedy choices of 16-bit elements, two tiles at a time, without a sort.
//
// An element comes before another one if it is larger, or equal and at a lower position. The greedy choice
// takes an element if fewer than two that come before it are taken in its row, and in its column. Only 24
// comparisons within rows and 24 within columns matter. Their bits fill masks; iterating the rule on masks
// ends at its one fixed point, after as many steps as the longest chain of elements that decide each other.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/semi24_linear/sm80/pruning/elements.cuh"
#include "kernels/semi24_linear/sm80/pruning/tiles_mask.cuh"

namespace sparseloom::kernels::cuda::semi24 {

/// Magnitudes of both tiles: of[4 row + column] has tile 0's in its low half. A comparison is a product with
/// minus one, which ptxas does not know: integer multiply-adds have a unit of their own, beside the one for
/// all other integer instructions, which is the limit here.
struct Magnitudes {
  std::uint32_t of[16], minus_one;
  bool plain;  // none is zero or NaN

  /// A NaN becomes `infinity`.
  __device__ __forceinline__ Magnitudes(const Elements<std::uint16_t>& w, std::uint32_t infinity,
                                        std::uint32_t given_minus_one)
      : minus_one(given_minus_one) {
    std::uint32_t magnitude[4][4], most = 0;  // of magnitudes less one, where zero is the largest
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      magnitude[i / 4][i % 4] = w.of[i / 4][i % 4] & 0x7fff7fffu;
      most = __viaddmax_u16x2(magnitude[i / 4][i % 4], 0xffffffffu, most);
    }
    plain = max(most & 0xffffu, most >> 16) < infinity;
    if (!plain) {
#pragma unroll
      for (int i = 0; i < 16; ++i)
        magnitude[i / 4][i % 4] = __vminu2(magnitude[i / 4][i % 4], infinity * 0x10001u);
    }
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const int row = i / 4, pair = i % 4 / 2;
      of[i] = permuted(magnitude[row][pair], magnitude[row][2 + pair], i % 2 == 0 ? 0x5410u : 0x7632u);
    }
  }
  /// Bits 15 and 31: whether element i comes before element j in tile 0 and in tile 1, for i < j.
  __device__ __forceinline__ std::uint32_t before(int i, int j) const {
    return of[j] * minus_one + (of[i] + 0x80008000u);  // no borrow leaves a half
  }
};

/// Collects comparisons of four lines as a TilesMask.
class Comparisons {
 public:
  /// Bits 15 and 31 of `upper` and `lower` become those of rows 2 i and 2 i + 1 at a column.
  __device__ __forceinline__ void add(int i, int col, std::uint32_t upper, std::uint32_t lower) {
    rows_[i] |= permuted(upper, lower, 0xfbd9u) & (0x0101u << col | 0x01010000u << (4 + col));
  }
  __device__ __forceinline__ TilesMask mask() const {
    return permuted(rows_[0], rows_[1], 0x5410u) | permuted(rows_[0], rows_[1], 0x7632u);
  }

 private:
  std::uint32_t rows_[2] = {};  // bytes: two rows of tile 0, and of tile 1
};

__device__ __forceinline__ std::uint32_t two_of_three(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
  return (a & b) | (a & c) | (b & c);
}

/// Bit of an element in ahead[d - 1]: the one d columns to the right comes before it. Columns are cyclic.
struct RowOrder {
  TilesMask ahead[3];

  __device__ __forceinline__ explicit RowOrder(const Magnitudes& w) {
    Comparisons next, opposite;
#pragma unroll
    for (int col = 0; col < 4; ++col)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const auto compare = [&](int row, int distance) {
          const int other = (col + distance) % 4;
          return w.before(4 * row + min(col, other), 4 * row + max(col, other));
        };
        next.add(i, col, compare(2 * i, 1), compare(2 * i + 1, 1));
        if (col < 2) opposite.add(i, col, compare(2 * i, 2), compare(2 * i + 1, 2));
      }
    const TilesMask across = opposite.mask();
    ahead[0] = next.mask() ^ 0x77777777u;  // where the other column is the higher one
    ahead[1] = (~across & 0x33333333u) | (across << 2 & 0xccccccccu);
    ahead[2] = ~((ahead[0] << 1 & 0xeeeeeeeeu) | (ahead[0] >> 3 & 0x11111111u));
  }
  /// Elements behind two others of their row, among `taken` or among all.
  __device__ __forceinline__ TilesMask full(TilesMask taken) const {
    return two_of_three(ahead[0] & ((taken >> 1 & 0x77777777u) | (taken << 3 & 0x88888888u)),
                        ahead[1] & ((taken >> 2 & 0x33333333u) | (taken << 2 & 0xccccccccu)),
                        ahead[2] & ((taken >> 3 & 0x11111111u) | (taken << 1 & 0xeeeeeeeeu)));
  }
  __device__ __forceinline__ TilesMask full() const { return two_of_three(ahead[0], ahead[1], ahead[2]); }
};

/// The same for columns: d rows further down.
struct ColumnOrder {
  TilesMask ahead[3];

  __device__ __forceinline__ explicit ColumnOrder(const Magnitudes& w) {
    Comparisons next, opposite;
#pragma unroll
    for (int col = 0; col < 4; ++col) {
      const auto compare = [&](int row, int distance) {
        const int other = (row + distance) % 4;
        return w.before(4 * min(row, other) + col, 4 * max(row, other) + col);
      };
      next.add(0, col, compare(0, 1), compare(1, 1));
      next.add(1, col, compare(2, 1), compare(3, 1));
      opposite.add(0, col, compare(0, 2), compare(1, 2));
    }
    ahead[0] = next.mask() ^ 0x00ffffffu;
    ahead[1] = permuted(opposite.mask(), 0, 0x1010u) ^ 0x0000ffffu;
    ahead[2] = ~permuted(ahead[0], 0, 0x2103u);
  }
  __device__ __forceinline__ TilesMask full(TilesMask taken) const {
    return two_of_three(ahead[0] & permuted(taken, 0, 0x0321u), ahead[1] & permuted(taken, 0, 0x1032u),
                        ahead[2] & permuted(taken, 0, 0x2103u));
  }
  __device__ __forceinline__ TilesMask full() const { return two_of_three(ahead[0], ahead[1], ahead[2]); }
};

__device__ __forceinline__ TilesMask largest_of_rows(const Magnitudes& w) { return ~RowOrder(w).full(); }

__device__ __forceinline__ TilesMask greedy(const Magnitudes& w) {
  const RowOrder rows(w);
  const ColumnOrder columns(w);
  TilesMask taken = ~(rows.full() | columns.full());
  const auto step = [&] { return ~(rows.full(taken) | columns.full(taken)); };
  // Of random tiles 28 % take more steps than these, which a warp's 64 tiles cannot avoid; none took nine.
#pragma unroll
  for (int i = 0; i < 3; ++i) taken = step();
  for (TilesMask next = step(); next != taken; next = step()) taken = next;
  return taken;
}

}  // namespace sparseloom::kernels::cuda::semi24
