// The exact choice among the 90 patterns of a tile of 16-bit elements.
//
// A pattern's upper half, rows 0 and 1, has 0 to 2 elements in each column, its lower half the others. So the
// best pattern is the best of 19 counts of columns: the best upper half with these counts, and the best lower
// half with the others. 36 sums of each half instead of 90 patterns.
//
// Sums are integers, in units of the last place of the tile's smallest element, with the pairs of rows 1 to 3
// below: of equal sums the larger key has the lesser mask (row 3's pair first), and a key names its pattern,
// since three rows say what the fourth is. Where a sum has more than kSumBits, as with infinities, the warp
// searches all patterns in fp64 as the CPU does.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "kernels/semi24_linear/sm80/pruning/elements.cuh"
#include "kernels/semi24_linear/sm80/pruning/tile_mask.cuh"
#include "kernels/semi24_linear/sm80/pruning/tiles_mask.cuh"
#include "layout/semi24_patterns.h"

namespace sparseloom::kernels::cuda::semi24 {

/// The pairs of two rows that have the same counts of columns.
struct SameCounts {
  int ways = 0;
  int first[6] = {}, second[6] = {};
  int others = 0;  // the counts that complete these to two in each column
};
struct ColumnCounts {
  static constexpr int kAll = 19;
  SameCounts of[kAll];
};
inline constexpr ColumnCounts kColumnCounts = [] {
  ColumnCounts all{};
  unsigned counts[ColumnCounts::kAll] = {};  // a byte's worth of four 2-bit counts
  const auto spread = [](unsigned pair) {
    return (pair & 1u) | (pair & 2u) << 1 | (pair & 4u) << 2 | (pair & 8u) << 3;
  };
  int known = 0;
  for (int first = 0; first < 6; ++first)
    for (int second = 0; second < 6; ++second) {
      const unsigned sum = spread(layout::kSemi24Pairs[first]) + spread(layout::kSemi24Pairs[second]);
      int at = 0;
      while (at < known && counts[at] != sum) ++at;
      if (at == known) counts[known++] = sum;
      SameCounts& same = all.of[at];
      same.first[same.ways] = first, same.second[same.ways++] = second;
    }
  for (int i = 0; i < ColumnCounts::kAll; ++i)
    for (int j = 0; j < ColumnCounts::kAll; ++j)
      if (counts[i] + counts[j] == 0xaau) all.of[i].others = j;
  return all;
}();
static_assert(kColumnCounts.of[ColumnCounts::kAll - 1].ways > 0, "there are 19 of them");

/// Keys of a row's six pairs.
struct PairKeys {
  std::uint32_t of[6];
};

/// Bits of a key: the sum above three fields of three bits for rows 3, 2 and 1.
inline constexpr int kFieldBits = 9, kSumBits = 32 - kFieldBits;

/// fp32 sums of |x| for the pairs of a row, in the order of kSemi24Pairs.
template <class E>
__device__ __forceinline__ void sum_pairs(std::uint32_t left, std::uint32_t right, float (&sum)[6]) {
  float x[4];
  if constexpr (E::kDtype == DType::bf16) {
    x[0] = __uint_as_float(left << 16), x[1] = __uint_as_float(left & 0xffff0000u);
    x[2] = __uint_as_float(right << 16), x[3] = __uint_as_float(right & 0xffff0000u);
  } else {
    const float2 low = __half22float2(*reinterpret_cast<const __half2*>(&left));
    const float2 high = __half22float2(*reinterpret_cast<const __half2*>(&right));
    x[0] = low.x, x[1] = low.y, x[2] = high.x, x[3] = high.y;
  }
  sum[0] = fabsf(x[0]) + fabsf(x[1]), sum[1] = fabsf(x[0]) + fabsf(x[2]);
  sum[2] = fabsf(x[1]) + fabsf(x[2]), sum[3] = fabsf(x[0]) + fabsf(x[3]);
  sum[4] = fabsf(x[1]) + fabsf(x[3]), sum[5] = fabsf(x[2]) + fabsf(x[3]);
}

/// The largest key of two rows whose pairs have these counts of columns.
template <int kCounts>
__device__ __forceinline__ std::uint32_t largest(const PairKeys& first, const PairKeys& second) {
  constexpr SameCounts kSame = kColumnCounts.of[kCounts];
  std::uint32_t most = first.of[kSame.first[0]] + second.of[kSame.second[0]];
#pragma unroll
  for (int i = 1; i < kSame.ways; ++i)
    most = __viaddmax_u32(first.of[kSame.first[i]], second.of[kSame.second[i]], most);
  return most;
}

/// The largest key of the patterns of a tile.
__device__ __forceinline__ std::uint32_t largest_key(const PairKeys (&row)[4]) {
  std::uint32_t upper[ColumnCounts::kAll], most = 0;
  [&]<std::size_t... kCounts>(std::index_sequence<kCounts...>) {
    ((upper[kCounts] = largest<kCounts>(row[0], row[1])), ...);
    ((most = __viaddmax_u32(upper[kColumnCounts.of[kCounts].others], largest<kCounts>(row[2], row[3]), most)),
     ...);
  }
  (std::make_index_sequence<ColumnCounts::kAll>());
  return most;
}

/// The elements of tile 0 that a key names.
__device__ __forceinline__ TilesMask pattern_of(std::uint32_t key) {
  // Fields as nibbles 1 to 3, then PRMT's table of pairs, the last of kSemi24Pairs first.
  const std::uint32_t fields = (key << 4 & 0x70u) | (key << 5 & 0x700u) | (key << 6 & 0x7000u);
  const std::uint32_t rows = permuted(0x06090a0cu, 0x00000305u, fields) & 0xffffff00u;
  // Row 0 has the columns that one of the other rows has: that one or all three.
  return rows | ((rows >> 8 ^ rows >> 16 ^ rows >> 24) & 0xfu);
}

/// The patterns in memory, for lanes that read different ones.
__device__ const layout::Semi24Patterns kPatternsInMemory = layout::kSemi24Patterns;

/// The mask of the tile of lane `lane`, whose rows are `left` and `right`, found by the warp: each lane sums
/// three patterns in fp64, in the CPU's order.
template <class E>
__device__ __noinline__ TilesMask searched_by_warp(uint4 left, uint4 right, int lane) {
  constexpr unsigned kWarp = 0xffffffffu;
  std::uint32_t row[4][2] = {{left.x, right.x}, {left.y, right.y}, {left.z, right.z}, {left.w, right.w}};
#pragma unroll
  for (int i = 0; i < 8; ++i) row[i / 2][i % 2] = __shfl_sync(kWarp, row[i / 2][i % 2], lane);
  double most = -1;
  int best = layout::kSemi24PatternCount;
  for (int at = static_cast<int>(threadIdx.x % 32); at < layout::kSemi24PatternCount; at += 32) {
    const unsigned mask = kPatternsInMemory.of[at].mask;
    double of_row[4];
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const unsigned group = mask >> (4 * r) & 15u;
      const int first = __ffs(static_cast<int>(group)) - 1, second = 31 - __clz(static_cast<int>(group));
      const auto value = [&](int col) {
        const unsigned bits = row[r][col / 2] >> (16 * (col % 2)) & 0xffffu;
        return static_cast<double>(E::value(magnitude_of<E>(bits)));
      };
      of_row[r] = value(first) + value(second);
    }
    const double sum = (of_row[0] + of_row[1]) + (of_row[2] + of_row[3]);
    if (sum > most) most = sum, best = at;
  }
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    const double other = __shfl_xor_sync(kWarp, most, distance);
    const int from = __shfl_xor_sync(kWarp, best, distance);
    if (other > most || (other == most && from < best)) most = other, best = from;
  }
  const unsigned mask = kPatternsInMemory.of[best].mask;
  return (mask & 0xfu) | (mask & 0xf0u) << 4 | (mask & 0xf00u) << 8 | (mask & 0xf000u) << 12;
}

/// The exact choice for both tiles; every lane of the warp calls it. `plain`: no element is zero.
template <class E>
__device__ __forceinline__ TilesMask exact(const Elements<std::uint16_t>& w, bool& plain) {
  TilesMask kept = 0;
  plain = true;
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
    // The smallest element that is not zero says the unit.
    std::uint32_t least = 0xffffffffu;
#pragma unroll
    for (int i = 0; i < 8; ++i) least = __vminu2(least, w.of[i / 2][2 * tile + i % 2] & 0x7fff7fffu);
    least = min(least & 0xffffu, least >> 16);
    if (least == 0) {
      plain = false;
      least = 0xffffffffu;
#pragma unroll
      for (int i = 0; i < 8; ++i)
        least = __viaddmin_u16x2(w.of[i / 2][2 * tile + i % 2] & 0x7fff7fffu, 0xffffffffu, least);
      least = min(least & 0xffffu, least >> 16) + 1;
    }
    // 1 / unit as bits of fp32; infinite where fp32 does not have it, so that the sum is not below the limit.
    const std::uint32_t exponent = max(least >> E::kFractionBits, E::kLeastExponent);
    const float scale = __uint_as_float((E::kUnitExponent - exponent) << 23);

    PairKeys keys[4];
    float total = 0;
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      float sum[6];
      sum_pairs<E>(w.of[r][2 * tile], w.of[r][2 * tile + 1], sum);
      total += sum[0] + sum[5];
#pragma unroll
      for (int p = 0; p < 6; ++p) {
        // 2^23 more leave the integer in the low bits; the shift removes the rest.
        const std::uint32_t integer = __float_as_uint(fmaf(sum[p], scale, 8388608.0f));
        keys[r].of[p] = (integer << kFieldBits) + (r > 0 ? (5u - p) << (3 * r - 3) : 0u);
      }
    }
    const bool narrow = total * scale < static_cast<float>(1 << kSumBits);  // false if total is NaN
    TilesMask own = pattern_of(largest_key(keys));
    unsigned wide = __ballot_sync(0xffffffffu, !narrow);
    while (wide != 0) {
      const int lane = __ffs(static_cast<int>(wide)) - 1;
      const TilesMask found = searched_by_warp<E>(
          {w.of[0][2 * tile], w.of[1][2 * tile], w.of[2][2 * tile], w.of[3][2 * tile]},
          {w.of[0][2 * tile + 1], w.of[1][2 * tile + 1], w.of[2][2 * tile + 1], w.of[3][2 * tile + 1]}, lane);
      if (static_cast<int>(threadIdx.x % 32) == lane) own = found;
      wide &= wide - 1;
    }
    kept |= own << (4 * tile);
  }
  return kept;
}

}  // namespace sparseloom::kernels::cuda::semi24
