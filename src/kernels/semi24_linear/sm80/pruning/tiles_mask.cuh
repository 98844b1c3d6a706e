// Which elements of a thread's two adjacent tiles of 4 x 4 stay, as bits of one register.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace sparseloom::kernels::cuda::semi24 {

/// Bit 8 row + 4 tile + column: its bytes are those of the mask in memory. Transposed, bit
/// 8 column + 4 tile + row. A nibble is a group of four.
using TilesMask = std::uint32_t;

/// Bytes of two registers; a nibble of the selector with its high bit set repeats the sign of its byte.
__device__ __forceinline__ std::uint32_t permuted(std::uint32_t low, std::uint32_t high,
                                                  std::uint32_t selector) {
  std::uint32_t bytes;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(low), "r"(high), "r"(selector));
  return bytes;
}

__device__ __forceinline__ TilesMask transposed(TilesMask mask) {
  std::uint32_t swapped = (mask ^ mask >> 7) & 0x00aa00aau;  // the low bits of row and column
  mask ^= swapped ^ swapped << 7;
  swapped = (mask ^ mask >> 14) & 0x0000ccccu;  // and the high ones
  return mask ^ swapped ^ swapped << 14;
}

/// Adds the lowest free elements to each group that has fewer than two.
__device__ __forceinline__ TilesMask completed(TilesMask mask) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    std::uint32_t count = mask - (mask >> 1 & 0x55555555u);
    count = (count & 0x33333333u) + (count >> 2 & 0x33333333u);
    mask |= mask + (~count >> 1 & 0x11111111u);  // x | x + 1 sets the lowest zero
  }
  return mask;
}

/// The two elements of each group of a mask that has two in each, looked up by PRMT: three bits of a group
/// say which two they are. A result's byte is the group of line 2 i + byte / 2 of tile byte % 2.
struct Places {
  std::uint32_t code[2], first[2], second[2];

  __device__ __forceinline__ explicit Places(TilesMask mask) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const std::uint32_t groups = mask >> (16 * i) & 0x7777u;
      // Elements by the group's low three bits: 1 has 0 and 3, 2 has 1 and 3, 3 has 0 and 1, 4 has 2 and 3,
      // 5 has 0 and 2, 6 has 1 and 2. Bits of a group's positions, then PRMT's selectors of either element.
      code[i] = permuted(0x040d0c00u, 0x0009080eu, groups);
      first[i] = permuted(0x10321000u, 0x00321054u, groups);
      second[i] = permuted(0x32767600u, 0x00545476u, groups);
    }
  }
  /// Bits of the positions of a group: two for the first element and two above them for the second.
  __device__ __forceinline__ unsigned positions(int line, int tile) const {
    return code[line / 2] >> (8 * (line % 2 * 2 + tile)) & 15u;
  }
  /// PRMT's selector of the two elements of a group that lies in two registers.
  __device__ __forceinline__ unsigned selector(int line, int tile) const {
    const int byte = line % 2 * 2 + tile;
    return permuted(first[line / 2], second[line / 2], byte | (4 + byte) << 4);
  }
  /// The positions of both tiles' groups in a line, as they lie in memory.
  __device__ __forceinline__ unsigned line_positions(int line) const {
    return (code[line / 2] | code[line / 2] >> 4) >> (line % 2 * 16);
  }
  /// The positions of lines 0 to 3 of a tile, a byte each.
  __device__ __forceinline__ std::uint32_t tile_positions(int tile) const {
    return permuted(code[0], code[1], tile == 0 ? 0x6420u : 0x7531u);
  }
};

}  // namespace sparseloom::kernels::cuda::semi24
