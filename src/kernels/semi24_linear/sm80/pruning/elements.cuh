// The elements of a thread: four rows of two adjacent tiles of 4 x 4, as bits in registers.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/semi24_linear/sm80/pruning/tiles_mask.cuh"

namespace sparseloom::kernels::cuda::semi24 {

/// Two elements that are adjacent in memory.
template <class Word>
struct alignas(2 * sizeof(Word)) Pair {
  Word first, second;
};

/// Columns 4 to 7 are those of tile 1.
template <class Word>
struct Elements;

template <>
struct Elements<std::uint32_t> {
  std::uint32_t of[4][8];

  __device__ __forceinline__ std::uint32_t at(int row, int col) const { return of[row][col]; }
  __device__ __forceinline__ void set(int row, int col, std::uint32_t bits) { of[row][col] = bits; }
  __device__ __forceinline__ void load(int row, const std::uint32_t* from) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint4 four = __ldcs(reinterpret_cast<const uint4*>(from) + i);
      of[row][4 * i] = four.x, of[row][4 * i + 1] = four.y, of[row][4 * i + 2] = four.z,
                  of[row][4 * i + 3] = four.w;
    }
  }
  /// The elements that are neither 0 nor -0.
  __device__ __forceinline__ TilesMask nonzero() const {
    TilesMask mask = 0;
#pragma unroll
    for (int i = 0; i < 32; ++i) mask |= static_cast<TilesMask>((of[i / 8][i % 8] & 0x7fffffffu) != 0) << i;
    return mask;
  }
  /// Clears the elements whose bit is not set.
  __device__ __forceinline__ void keep(TilesMask mask) {
#pragma unroll
    for (int i = 0; i < 32; ++i)
      if ((mask >> i & 1u) == 0) of[i / 8][i % 8] = 0;
  }
  __device__ __forceinline__ Pair<std::uint32_t> in_row(int row, int tile, const Places& places) const {
    return chosen(places.positions(row, tile), of[row][tile * 4], of[row][tile * 4 + 1],
                  of[row][tile * 4 + 2], of[row][tile * 4 + 3]);
  }
  __device__ __forceinline__ Pair<std::uint32_t> in_column(int col, const Places& places) const {
    return chosen(places.positions(col % 4, col / 4), of[0][col], of[1][col], of[2][col], of[3][col]);
  }

 private:
  static __device__ __forceinline__ Pair<std::uint32_t> chosen(unsigned positions, std::uint32_t e0,
                                                               std::uint32_t e1, std::uint32_t e2,
                                                               std::uint32_t e3) {
    const auto at = [&](unsigned place) {
      return place & 2u ? (place & 1u ? e3 : e2) : (place & 1u ? e1 : e0);
    };
    return {at(positions & 3u), at(positions >> 2)};
  }
};

template <>
struct Elements<std::uint16_t> {
  std::uint32_t of[4][4];  // two per register

  __device__ __forceinline__ void set(int row, int col, std::uint32_t bits) {
    of[row][col / 2] = col % 2 == 0 ? bits : of[row][col / 2] | bits << 16;
  }
  __device__ __forceinline__ void load(int row, const std::uint16_t* from) {
    const uint4 eight = __ldcs(reinterpret_cast<const uint4*>(from));
    of[row][0] = eight.x, of[row][1] = eight.y, of[row][2] = eight.z, of[row][3] = eight.w;
  }
  __device__ __forceinline__ TilesMask nonzero() const {
    TilesMask mask = 0;
#pragma unroll
    for (int row = 0; row < 4; ++row) {
      // 1 in each half that is not zero: columns 0 2 4 6 then are bits 0 2 4 6, and 1 3 5 7 are 16 18 20 22.
      std::uint32_t ones = 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) ones += __vminu2(of[row][i] & 0x7fff7fffu, 0x00010001u) << (2 * i);
      mask |= ((ones | ones >> 15) & 0xffu) << (8 * row);
    }
    return mask;
  }
  __device__ __forceinline__ void keep(TilesMask mask) {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const unsigned two = mask >> (2 * i);
      of[i / 4][i % 4] &= ((two & 1u) | (two & 2u) << 15) * 0xffffu;
    }
  }
  __device__ __forceinline__ Pair<std::uint16_t> in_row(int row, int tile, const Places& places) const {
    return pair(permuted(of[row][2 * tile], of[row][2 * tile + 1], places.selector(row, tile)));
  }
  __device__ __forceinline__ Pair<std::uint16_t> in_column(int col, const Places& places) const {
    const unsigned halves = col % 2 == 0 ? 0x5410u : 0x7632u;
    return pair(permuted(permuted(of[0][col / 2], of[1][col / 2], halves),
                         permuted(of[2][col / 2], of[3][col / 2], halves),
                         places.selector(col % 4, col / 4)));
  }

 private:
  static __device__ __forceinline__ Pair<std::uint16_t> pair(std::uint32_t two) {
    return {static_cast<std::uint16_t>(two), static_cast<std::uint16_t>(two >> 16)};
  }
};

}  // namespace sparseloom::kernels::cuda::semi24
