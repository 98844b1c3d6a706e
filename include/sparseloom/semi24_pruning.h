// The prunings that make a weight 2:4, by name.
#pragma once

#include <cstdint>

namespace sparseloom {

/// Which elements of a weight a pruning keeps, by their magnitudes. A NaN counts as infinite, and -0 as 0.
enum class Semi24Pruning : std::uint8_t {
  /// The two largest of each group. Of equal ones, the first.
  magnitude,
  /// At most two in each row and column of every 4 x 4 tile, so that W^T is 2:4 too: elements are taken in
  /// descending order, of equal ones the first in row-major order, wherever row and column have room. A tile
  /// may end with 7 elements: its last free row and column then cross in an element that is taken already.
  transposable_greedy,
  /// The largest sum of magnitudes among the 90 patterns of a tile that have two elements in each row and
  /// each column. Sums are in fp64: the two of each row, then rows 0 and 1, rows 2 and 3, and both halves. Of
  /// equal patterns, the one whose mask is the least number (bit 4 row + column). Where transposable_greedy
  /// ends with 8 elements, its sum is at most this one. Where it ends with 7, no pattern of the 90 contains
  /// its elements, and its sum may be the larger one.
  transposable_exact,
};

/// Where semi24_compress (semi24_ops.h) writes its results for a weight [rows, cols]; each is dense and
/// row-major. The first three are always written; the last two are both null if W^T is not requested.
struct Semi24Compressed {
  void* values = nullptr;                        // as semi24_pack, of the weight's dtype
  std::uint8_t* positions = nullptr;             // as semi24_pack
  std::uint8_t* mask = nullptr;                  // [rows, ceil(cols / 8)]; bit c % 8 of a byte: kept
  void* transposed_values = nullptr;             // those of W^T [cols, rows]
  std::uint8_t* transposed_positions = nullptr;  // those of W^T
};

}  // namespace sparseloom
