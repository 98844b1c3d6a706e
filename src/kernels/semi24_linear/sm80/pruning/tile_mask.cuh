// Which elements of a tile of 4 x 4 stay: layout/semi24_prune.cpp on a GPU, with the same ties.
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

/// The bits of an element. `magnitude` has the order of |x|, with NaN as infinity.
struct F32Bits {
  using Word = std::uint32_t;
  using Key = std::uint64_t;
  static constexpr DType kDtype = DType::f32;
  static __device__ __forceinline__ Word magnitude(Word bits) { return min(bits & 0x7fffffffu, 0x7f800000u); }
  static __device__ __forceinline__ double value(Word magnitude) { return __uint_as_float(magnitude); }
};
struct F16Bits {
  using Word = std::uint16_t;
  using Key = std::uint32_t;
  static constexpr DType kDtype = DType::f16;
  static __device__ __forceinline__ std::uint32_t magnitude(Word bits) {
    return min(bits & 0x7fffu, 0x7c00u);
  }
  static __device__ __forceinline__ double value(std::uint32_t magnitude) {
    return __half2float(__ushort_as_half(static_cast<unsigned short>(magnitude)));
  }
};
struct Bf16Bits {
  using Word = std::uint16_t;
  using Key = std::uint32_t;
  static constexpr DType kDtype = DType::bf16;
  static __device__ __forceinline__ std::uint32_t magnitude(Word bits) {
    return min(bits & 0x7fffu, 0x7f80u);
  }
  static __device__ __forceinline__ double value(std::uint32_t magnitude) {
    return __uint_as_float(magnitude << 16);
  }
};

using TileMask = layout::Semi24TileMask;

/// Keys descend as the choice does: by magnitude, and of equal ones the lower place first.
template <class E>
__device__ __forceinline__ typename E::Key key_of(typename E::Word bits, int place) {
  return static_cast<typename E::Key>(E::magnitude(bits)) << 4 | (15 - place);
}

template <class Key>
__device__ __forceinline__ int place_of(Key key) {
  return 15 - static_cast<int>(key & 15);
}

/// The two largest of each row.
template <class E>
__device__ __forceinline__ TileMask largest_of_rows(const typename E::Word (&tile)[16]) {
  TileMask kept = 0;
#pragma unroll
  for (int row = 0; row < 16; row += 4) {
    typename E::Key key[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) key[i] = key_of<E>(tile[row + i], row + i);
    const auto first = max(max(key[0], key[1]), max(key[2], key[3]));
    const auto second =
        max(min(max(key[0], key[1]), max(key[2], key[3])), max(min(key[0], key[1]), min(key[2], key[3])));
    kept |= 1u << place_of(first) | 1u << place_of(second);
  }
  return kept;
}

/// Sorts 16 keys into descending order by Batcher's odd-even merging network.
template <class Key>
__device__ __forceinline__ void sort_descending(Key (&key)[16]) {
#pragma unroll
  for (int p = 1; p < 16; p *= 2)
#pragma unroll
    for (int k = p; k >= 1; k /= 2)
#pragma unroll
      for (int j = k % p; j + k < 16; j += 2 * k)
#pragma unroll
        for (int i = 0; i < k; ++i)
          if (i + j + k < 16 && (i + j) / (2 * p) == (i + j + k) / (2 * p)) {
            const Key a = key[i + j], b = key[i + j + k];
            key[i + j] = max(a, b), key[i + j + k] = min(a, b);
          }
}

/// Takes elements in descending order wherever row and column have room for two.
template <class E>
__device__ __forceinline__ TileMask greedy(const typename E::Word (&tile)[16]) {
  typename E::Key key[16];
#pragma unroll
  for (int i = 0; i < 16; ++i) key[i] = key_of<E>(tile[i], i);
  sort_descending(key);
  TileMask kept = 0, full = 0;  // full: in a row or column without room
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const int place = place_of(key[i]);
    const TileMask own = 1u << place, row = 0xfu << (place & 12), column = 0x1111u << (place & 3);
    if (full & own) continue;
    // What was kept in the row before makes two of it.
    full |= (kept & row ? row : 0u) | (kept & column ? column : 0u);
    kept |= own;
  }
  return kept;
}

/// The pattern with the largest sum, in the CPU's order of additions.
template <class E>
__device__ __forceinline__ TileMask exact(const typename E::Word (&tile)[16]) {
  double value[16], half[2][36];
#pragma unroll
  for (int i = 0; i < 16; ++i) value[i] = E::value(E::magnitude(tile[i]));
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
__device__ __forceinline__ TileMask tile_mask(const typename E::Word (&tile)[16]) {
  if constexpr (kPruning == Semi24Pruning::magnitude)
    return largest_of_rows<E>(tile);
  else if constexpr (kPruning == Semi24Pruning::transposable_greedy)
    return greedy<E>(tile);
  else
    return exact<E>(tile);
}

}  // namespace sparseloom::kernels::cuda::semi24
