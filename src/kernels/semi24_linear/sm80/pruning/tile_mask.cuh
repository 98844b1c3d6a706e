// The bits of dtypes, and the elements of a tile of 4 x 4 of fp32 that stay: layout/semi24_prune.cpp on a
// GPU, with the same ties. Tiles of 16 bits have dominance.cuh and exact.cuh.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "layout/semi24_patterns.h"
#include "sparseloom/dtype.h"
#include "sparseloom/semi24_pruning.h"

namespace sparseloom::kernels::cuda::semi24 {

/// The bits of an element. `magnitude` has the order of |x|, with NaN as infinity. kUnitExponent less an
/// element's exponent field is the field of 1 / (a unit in its last place) as fp32, if the element's is at
/// least kLeastExponent.
struct F32Bits {
  using Word = std::uint32_t;
  using Key = std::uint64_t;
  static constexpr DType kDtype = DType::f32;
  static constexpr std::uint32_t kInfinity = 0x7f800000u;
  static __device__ __forceinline__ float value(std::uint32_t magnitude) {
    return __uint_as_float(magnitude);
  }
};
struct F16Bits {
  using Word = std::uint16_t;
  static constexpr DType kDtype = DType::f16;
  static constexpr std::uint32_t kInfinity = 0x7c00u, kFractionBits = 10, kUnitExponent = 127 + 15 + 10,
                                 kLeastExponent = 1;
  static __device__ __forceinline__ float value(std::uint32_t magnitude) {
    return __half2float(__ushort_as_half(static_cast<unsigned short>(magnitude)));
  }
};
struct Bf16Bits {
  using Word = std::uint16_t;
  static constexpr DType kDtype = DType::bf16;
  static constexpr std::uint32_t kInfinity = 0x7f80u, kFractionBits = 7, kUnitExponent = 127 + 127 + 7,
                                 kLeastExponent = kUnitExponent - 255;
  static __device__ __forceinline__ float value(std::uint32_t magnitude) {
    return __uint_as_float(magnitude << 16);
  }
};

using TileMask = layout::Semi24TileMask;
/// Magnitudes of a tile, row-major.
using Tile = std::uint32_t[16];

template <class E>
__device__ __forceinline__ std::uint32_t magnitude_of(std::uint32_t bits) {
  constexpr std::uint32_t kAll = sizeof(typename E::Word) == 2 ? 0x7fffu : 0x7fffffffu;
  return min(bits & kAll, E::kInfinity);
}

/// The two largest of each row. Keys descend in the order of choice: of equal magnitudes the lower position
/// first.
template <class E>
__device__ __forceinline__ TileMask largest_of_rows(const Tile& tile) {
  using Key = typename E::Key;
  TileMask kept = 0;
#pragma unroll
  for (int row = 0; row < 16; row += 4) {
    Key key[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) key[i] = static_cast<Key>(tile[row + i]) << 2 | (3 - i);
    const Key upper = max(key[0], key[1]), lower = max(key[2], key[3]);
    const Key second = max(min(upper, lower), max(min(key[0], key[1]), min(key[2], key[3])));
    kept |= (8u >> static_cast<unsigned>(max(upper, lower) & 3) | 8u >> static_cast<unsigned>(second & 3))
            << row;
  }
  return kept;
}

/// Batcher's odd-even merging network of 16 keys: which two are compared, in order.
struct SortingNetwork {
  static constexpr int kSteps = 63;
  int first[kSteps], second[kSteps];
};
inline constexpr SortingNetwork kSortingNetwork = [] {
  SortingNetwork network{};
  int step = 0;
  for (int p = 1; p < 16; p *= 2)
    for (int k = p; k >= 1; k /= 2)
      for (int j = k % p; j + k < 16; j += 2 * k)
        for (int i = 0; i < k && i + j + k < 16; ++i)
          if ((i + j) / (2 * p) == (i + j + k) / (2 * p))
            network.first[step] = i + j, network.second[step++] = i + j + k;
  return network;
}();

/// Sorts into descending order. Unrolled by templates, since ptxas keeps keys in local memory otherwise.
template <class Key>
__device__ __forceinline__ void sort_descending(Key (&key)[16]) {
  [&]<std::size_t... kStep>(std::index_sequence<kStep...>) {
    const auto compare = [&]<std::size_t kAt>() {
      constexpr int kFirst = kSortingNetwork.first[kAt], kSecond = kSortingNetwork.second[kAt];
      const Key a = key[kFirst], b = key[kSecond];
      key[kFirst] = max(a, b), key[kSecond] = min(a, b);
    };
    (compare.template operator()<kStep>(), ...);
  }
  (std::make_index_sequence<SortingNetwork::kSteps>());
}

/// Takes elements in descending order as long as row and column have room for two. Below the magnitude, a key
/// has: 15 - position, so that of equal ones the lower position comes first; a bit for the row and one for
/// the column; and the position where a shift reads it.
template <class E>
__device__ __forceinline__ TileMask greedy(const Tile& tile) {
  using Key = typename E::Key;
  constexpr std::uint32_t kLines = 0xffu << 5;
  Key key[16];
#pragma unroll
  for (int i = 0; i < 16; ++i)
    key[i] = static_cast<Key>(tile[i]) << 17 | ((15 - i) << 13 | (1 << (i / 4) | 16 << (i % 4)) << 5 | i);
  sort_descending(key);
  TileMask kept = 0;
  std::uint32_t once = 0, full = 0;  // rows and columns that hold at least one element, and two
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const auto own = static_cast<std::uint32_t>(key[i]), lines = own & kLines;
    const bool room = (full & lines) == 0;
    const TileMask bit = 1u << (own & 31u);
    full = room ? full | (once & lines) : full;
    once = room ? once | lines : once;
    kept = room ? kept | bit : kept;
  }
  return kept;
}

/// The pattern with the largest sum, in fp64 and the CPU's order of additions.
template <class E>
__device__ __forceinline__ TileMask largest_pattern(const Tile& tile) {
  double value[16], half[2][36];
#pragma unroll
  for (int i = 0; i < 16; ++i) value[i] = E::value(tile[i]);
  const auto pair_sum = [&](int row, int pair) {
    constexpr int kFirst[6] = {0, 0, 1, 0, 1, 2}, kSecond[6] = {1, 2, 2, 3, 3, 3};  // of kSemi24Pairs
    return value[4 * row + kFirst[pair]] + value[4 * row + kSecond[pair]];
  };
#pragma unroll
  for (int h = 0; h < 2; ++h)
#pragma unroll
    for (int p = 0; p < 36; ++p) half[h][p] = pair_sum(2 * h, p % 6) + pair_sum(2 * h + 1, p / 6);
  double most = -1;
  TileMask kept = 0;
  [&]<std::size_t... kIndex>(std::index_sequence<kIndex...>) {
    const auto consider = [&]<std::size_t kAt>() {
      constexpr layout::Semi24Pattern kPattern = layout::kSemi24Patterns.of[kAt];
      constexpr int kUpper = kPattern.pair[0] + 6 * kPattern.pair[1],
                    kLower = kPattern.pair[2] + 6 * kPattern.pair[3];
      constexpr TileMask kMask = kPattern.mask;
      const double sum = half[0][kUpper] + half[1][kLower];
      if (sum > most) most = sum, kept = kMask;
    };
    (consider.template operator()<kIndex>(), ...);
  }
  (std::make_index_sequence<layout::kSemi24PatternCount>());
  return kept;
}

template <class E, Semi24Pruning kPruning>
__device__ __forceinline__ TileMask tile_mask(const Tile& tile) {
  if constexpr (kPruning == Semi24Pruning::magnitude)
    return largest_of_rows<E>(tile);
  else if constexpr (kPruning == Semi24Pruning::transposable_greedy)
    return greedy<E>(tile);
  else
    return largest_pattern<E>(tile);
}

}  // namespace sparseloom::kernels::cuda::semi24
