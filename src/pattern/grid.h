// Helpers that all generators share: the checked grid of a matrix, exact totals, and uniform choices without
// replacement.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/rng.h"
#include "sparseloom/pattern.h"

namespace sparseloom::pattern {

/// A grid of blocks.
struct Grid {
  std::int64_t rows = 0;  // block rows
  std::int64_t cols = 0;  // block columns
  std::int64_t cells() const noexcept { return rows * cols; }
};

/// The grid of a rows x cols matrix. Throws Error on a negative size, an unsupported block, a side of more
/// than 2^31 - 1 blocks (indices are int32) or more than 2^60 elements (byte offsets are int64). Sizes that
/// pass here can be multiplied without a further overflow check.
Grid require_grid(const char* op, std::int64_t rows, std::int64_t cols, BlockShape block);

/// The number of block rows of a grid that has as many block columns: the nodes of a graph. Throws Error as
/// require_grid, and on any other grid.
std::int64_t require_square(const char* op, std::int64_t rows, std::int64_t cols, BlockShape block);

/// llround(density * cells): the number of blocks. Throws Error on a density outside [0, 1], NaN included.
std::int64_t require_total(const char* op, Grid grid, double density);

/// Chooses min(count, n) distinct numbers in [0, n), each set of them with equal probability (Robert Floyd's
/// method: Bentley & Floyd 1987). Calls has(i) to ask whether i is chosen already and add(i) to choose it.
template <class Has, class Add>
void choose(core::Rng& rng, std::int64_t n, std::int64_t count, Has has, Add add) {
  for (std::int64_t last = n > count ? n - count : 0; last < n; ++last) {
    const auto drawn = static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>(last) + 1));
    add(has(drawn) ? last : drawn);
  }
}

/// `total` divided into `parts` shares that differ by at most one; which parts get the larger share is
/// random.
std::vector<std::int64_t> even_shares(core::Rng& rng, std::int64_t total, std::int64_t parts);

}  // namespace sparseloom::pattern
