// The elements of a thread: two adjacent tiles of 4 x 4, as bits in registers.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace sparseloom::kernels::cuda::semi24 {

/// Two elements that are adjacent in memory.
template <class Word>
struct alignas(2 * sizeof(Word)) Pair {
  Word first, second;
};

/// Element col of row r is tile col / 4's number 4 r + col % 4.
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
  /// Clears the elements of tile `half` whose bit is not set.
  __device__ __forceinline__ void keep(int half, unsigned mask) {
#pragma unroll
    for (int i = 0; i < 16; ++i)
      if ((mask >> i & 1u) == 0) of[i / 4][half * 4 + i % 4] = 0;
  }
  /// The elements of row `row` of tile `half` at the two columns that a group's positions name.
  __device__ __forceinline__ Pair<std::uint32_t> in_row(int row, int half, unsigned positions) const {
    return chosen(positions, of[row][half * 4], of[row][half * 4 + 1], of[row][half * 4 + 2],
                  of[row][half * 4 + 3]);
  }
  __device__ __forceinline__ Pair<std::uint32_t> in_column(int col, unsigned positions) const {
    return chosen(positions, of[0][col], of[1][col], of[2][col], of[3][col]);
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

  __device__ __forceinline__ std::uint32_t at(int row, int col) const {
    return col % 2 == 0 ? of[row][col / 2] & 0xffffu : of[row][col / 2] >> 16;
  }
  __device__ __forceinline__ void set(int row, int col, std::uint32_t bits) {
    of[row][col / 2] = col % 2 == 0 ? bits : of[row][col / 2] | bits << 16;
  }
  __device__ __forceinline__ void load(int row, const std::uint16_t* from) {
    const uint4 eight = __ldcs(reinterpret_cast<const uint4*>(from));
    of[row][0] = eight.x, of[row][1] = eight.y, of[row][2] = eight.z, of[row][3] = eight.w;
  }
  __device__ __forceinline__ void keep(int half, unsigned mask) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const unsigned two = mask >> (2 * i);
      of[i / 2][half * 2 + i % 2] &= ((two & 1u) | (two & 2u) << 15) * 0xffffu;
    }
  }
  __device__ __forceinline__ Pair<std::uint16_t> in_row(int row, int half, unsigned positions) const {
    return chosen(positions, of[row][half * 2], of[row][half * 2 + 1]);
  }
  __device__ __forceinline__ Pair<std::uint16_t> in_column(int col, unsigned positions) const {
    const unsigned halves = col % 2 == 0 ? 0x5410u : 0x7632u;
    return chosen(positions, __byte_perm(of[0][col / 2], of[1][col / 2], halves),
                  __byte_perm(of[2][col / 2], of[3][col / 2], halves));
  }

 private:
  static __device__ __forceinline__ Pair<std::uint16_t> chosen(unsigned positions, std::uint32_t e01,
                                                               std::uint32_t e23) {
    // Element p has bytes 2 p and 2 p + 1 of the eight.
    const unsigned selector = (positions & 3u) * 0x22u + (positions >> 2) * 0x2200u + 0x1010u;
    const std::uint32_t two = __byte_perm(e01, e23, selector);
    return {static_cast<std::uint16_t>(two), static_cast<std::uint16_t>(two >> 16)};
  }
};

}  // namespace sparseloom::kernels::cuda::semi24
