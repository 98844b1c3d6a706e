// What all generators share: the checked grid of a matrix, exact totals, and uniform choices without
// replacement.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/rng.h"
#include "sparseloom/pattern.h"

namespace sparseloom::pattern {

struct Grid {
  std::int64_t rows = 0;  // block rows
  std::int64_t cols = 0;  // block columns
  std::int64_t cells() const noexcept { return rows * cols; }
};

/// The grid of a rows x cols matrix. Throws Error on a negative size, an unsupported block, a side of more
/// than 2^31 - 1 blocks (indices are int32) or more than 2^60 elements (byte offsets are int64): what passes
/// here can be multiplied out without a further check.
Grid require_grid(const char* op, std::int64_t rows, std::int64_t cols, BlockShape block);

/// llround(density * cells): the number of blocks. Throws Error on a density outside [0, 1], NaN included.
std::int64_t require_total(const char* op, Grid grid, double density);

/// min(count, n) distinct numbers of [0, n), every set of them as likely as any other (Floyd's method): calls
/// has(i) and add(i).
template <class Has, class Add>
void choose(core::Rng& rng, std::int64_t n, std::int64_t count, Has has, Add add) {
  for (std::int64_t last = n > count ? n - count : 0; last < n; ++last) {
    const auto drawn = static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>(last) + 1));
    add(has(drawn) ? last : drawn);
  }
}

/// `total` cut into `parts` shares that differ by at most one; which parts get the larger share is drawn.
std::vector<std::int64_t> even_shares(core::Rng& rng, std::int64_t total, std::int64_t parts);

}  // namespace sparseloom::pattern
