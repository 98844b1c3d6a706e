// The table by which AVX2's kernels spread stored elements over their columns.
#pragma once

#include <array>

namespace sparseloom::kernels::cpu {

/// For each byte of positions, which of its two groups' four stored values and four zeros each of their eight
/// columns has: 0 to 3, or 4 for a zero. consteval: no function of a file that is built for one instruction
/// set may serve another.
template <class Int>
consteval std::array<std::array<Int, 8>, 256> lanes_of_pairs() {
  std::array<std::array<Int, 8>, 256> lanes{};
  for (unsigned byte = 0; byte < 256; ++byte) {
    lanes[byte].fill(4);
    for (unsigned half = 0; half < 2; ++half) {
      const unsigned bits = byte >> 4 * half & 15u;
      // The second one first: the absent group behind an odd number of them has it at the same position.
      lanes[byte][4 * half + (bits >> 2)] = static_cast<Int>(2 * half + 1);
      lanes[byte][4 * half + (bits & 3u)] = static_cast<Int>(2 * half);
    }
  }
  return lanes;
}

/// For each byte of positions, which of its eight columns has each of the four stored values.
consteval std::array<std::array<std::int32_t, 4>, 256> columns_of_pairs() {
  std::array<std::array<std::int32_t, 4>, 256> columns{};
  for (int byte = 0; byte < 256; ++byte)
    for (int i = 0; i < 4; ++i) columns[byte][i] = i / 2 * 4 + (byte >> 2 * i & 3);
  return columns;
}

}  // namespace sparseloom::kernels::cpu
