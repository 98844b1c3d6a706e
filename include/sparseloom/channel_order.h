// Which order of the inputs keeps most of a weight that is pruned to 2:4. The order of a layer's inputs is
// free: the layer before it can give its outputs in any order, at no cost when the model runs.
#pragma once

#include <cstdint>
#include <vector>

#include "sparseloom/executor.h"
#include "sparseloom/export.h"
#include "sparseloom/matrix_view.h"

namespace sparseloom {

/// What other threads may see of a search while it runs, and how they end it. Each number is read and written
/// atomically (std::atomic_ref).
struct SearchProgress {
  std::int64_t stop = 0;    ///< written by the caller: not 0 ends the search within some ten milliseconds
  std::int64_t rounds = 0;  ///< rounds that are done
  std::int64_t scored = 0;  ///< groups of four columns whose swaps this round has looked at
  std::int64_t groups = 0;  ///< of how many
};

/// Returns an order of the columns of w [rows, cols] with a larger sum of magnitudes in the two largest
/// elements of each group of four: column order[i] of w is to become column i. Columns of a last group of
/// fewer than four keep their places.
///
/// It swaps columns of different groups, in rounds of disjoint swaps from the best on, until no swap gains
/// anything or `rounds` are done (0: no limit); Pool and Yu, "Channel Permutations for N:M Sparsity", NeurIPS
/// 2021. The result does not depend on the number of threads. One round over a new matrix takes cols^2 rows
/// comparisons. w is f32, f16, bf16 or f64 and lies on the CPU; sums are formed from float32 magnitudes.
/// A search that `progress` ends returns the best order so far. Throws Error on other dtypes, on a negative
/// `rounds` and where w holds NaN or Inf.
SPARSELOOM_API std::vector<std::int64_t> semi24_channel_order(const ConstMatrixView& w, std::int64_t rounds,
                                                              const Executor& executor,
                                                              SearchProgress* progress = nullptr);

}  // namespace sparseloom
