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

/// The line of a side of `shorter` lines whose span holds the centre of line i of `longer` ones: 0 for the
/// first and shorter - 1 for the last, in steps of at most one where shorter <= longer, so that no line is
/// left out. Sides are below 2^31, so the product fits.
constexpr std::int64_t stretched_line(std::int64_t i, std::int64_t longer, std::int64_t shorter) noexcept {
  return (2 * i + 1) * shorter / (2 * longer);
}

/// The number of nodes of a graph that a grid can hold: its shorter side. Throws Error as require_grid.
std::int64_t require_nodes(const char* op, std::int64_t rows, std::int64_t cols, BlockShape block);

/// The nodes of a pattern that is one graph: as many block rows as block columns. Throws Error on any other.
std::int64_t require_graph(const char* op, const BlockPattern& pattern);

/// A graph of that many nodes without edges: a pattern of nodes x nodes blocks, for stretched().
BlockPattern no_edges(std::int64_t nodes);

/// The pattern of a rows x cols matrix whose block (r, c) is present where the graph joins the two nodes that
/// r and c stand for (stretched_line). On a square grid of as many lines as nodes that is the graph itself;
/// along a longer side, neighbouring lines stand for one node.
BlockPattern stretched(const BlockPattern& graph, std::int64_t rows, std::int64_t cols, BlockShape block);

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
