// The masks among which a transposable pruning chooses, for the CPU and for CUDA.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sparseloom::layout {

/// The elements of a tile of 4 x 4 that are kept: bit 4 row + column.
using Semi24TileMask = unsigned;

// C arrays, since CUDA device code cannot call the members of std::array.

/// The six pairs of a row, as masks of four bits in ascending order.
inline constexpr unsigned kSemi24Pairs[6] = {0b0011, 0b0101, 0b0110, 0b1001, 0b1010, 0b1100};

/// A pattern with two elements in each row and column: its pairs, and its mask.
struct Semi24Pattern {
  std::uint8_t pair[4];
  Semi24TileMask mask;
};

inline constexpr int kSemi24PatternCount = 90;
struct Semi24Patterns {
  Semi24Pattern of[kSemi24PatternCount];
};

inline constexpr Semi24Patterns kSemi24Patterns = [] {
  Semi24Patterns all{};
  std::size_t count = 0;
  // Row 3 outermost and row 0 innermost: the masks ascend.
  for (unsigned p = 0; p < 6 * 6 * 6 * 6; ++p) {
    const unsigned pair[4] = {p % 6, p / 6 % 6, p / 36 % 6, p / 216};
    int in_column[4] = {};
    Semi24TileMask mask = 0;
    for (unsigned row = 0; row < 4; ++row) {
      mask |= kSemi24Pairs[pair[row]] << (4 * row);
      for (unsigned c = 0; c < 4; ++c) in_column[c] += static_cast<int>(kSemi24Pairs[pair[row]] >> c & 1u);
    }
    bool two_each = true;
    for (const int kept : in_column) two_each &= kept == 2;
    if (!two_each) continue;
    all.of[count].mask = mask;
    for (unsigned row = 0; row < 4; ++row) all.of[count].pair[row] = static_cast<std::uint8_t>(pair[row]);
    ++count;
  }
  return all;
}();
static_assert(kSemi24Patterns.of[kSemi24PatternCount - 1].mask != 0, "there are 90 of them");

}  // namespace sparseloom::layout
