// Copies to and from 2:4 (semi24.h), and the prunings that make a weight 2:4.
#pragma once

#include <cstdint>

#include "sparseloom/executor.h"
#include "sparseloom/export.h"
#include "sparseloom/matrix_view.h"
#include "sparseloom/semi24.h"

namespace sparseloom {

/// values and positions <- a weight with at most two nonzeros in each group. -0 counts as zero, NaN as a
/// nonzero. Every stored element is copied bit by bit, so unpack gives the weight back but for the sign of
/// zeros that are not stored. Throws Error naming row, group and number of nonzeros of the first group that
/// has more than two. dense has any dtype and lies on the CPU; the executor lends threads.
SPARSELOOM_API void semi24_pack(const ConstMatrixView& dense, void* values, std::uint8_t* positions,
                                const Executor& executor);

/// dense <- the values at their places, zero elsewhere. Throws Error where the positions are not valid.
SPARSELOOM_API void semi24_unpack(const Semi24View& w, const void* values, const MatrixView& dense,
                                  const Executor& executor);

/// Which elements of a weight a pruning keeps, by their magnitudes; NaN counts as the largest.
enum class Semi24Pruning : std::uint8_t {
  /// The two largest of each group. Of equal ones, the first.
  magnitude,
  /// At most two in each row and column of every 4 x 4 tile, so that W^T is 2:4 too: elements are taken in
  /// descending order, of equal ones the first in row-major order, wherever row and column have room. A tile
  /// may end with 7 elements: its last free row and column then cross in an element that is taken already.
  transposable_greedy,
  /// The pattern with the largest sum of magnitudes, added in fp64 in row-major order, among the 90 that have
  /// exactly two elements in each row and column of the tile; of equal ones, the one whose mask is the least
  /// number (bit 4 row + column). Where transposable_greedy ends with 8 elements, its sum is at most this
  /// one.
  /// Where it ends with 7, no pattern contains its elements, and its sum may be larger.
  transposable_exact,
};

/// mask [w.rows, w.cols], row-major <- whether the pruning keeps the element. A tile or group that the border
/// cuts is completed by zeros, of which nothing is kept. w is f32, f16, bf16 or f64 and lies on the CPU. The
/// result does not depend on the number of threads. Throws Error on other dtypes.
SPARSELOOM_API void semi24_prune(const ConstMatrixView& w, Semi24Pruning pruning, bool* mask,
                                 const Executor& executor);

}  // namespace sparseloom
