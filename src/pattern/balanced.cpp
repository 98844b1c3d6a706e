// pattern::balanced: every block row gets the floor or ceiling of its share of the blocks.
#include "pattern/grid.h"

namespace sparseloom::pattern {

BlockPattern balanced(std::int64_t rows, std::int64_t cols, BlockShape block, double density,
                      std::uint64_t seed) {
  const char* op = "pattern.balanced";
  const Grid grid = require_grid(op, rows, cols, block);
  const std::int64_t total = require_total(op, grid, density);
  if (grid.cells() == 0) return {rows, cols, block};  // one side may have 2^31 lines
  BlockPattern result(rows, cols, block);
  const core::Rng rng(seed);
  core::Rng for_shares = rng.split(0);
  const std::vector<std::int64_t> share = even_shares(for_shares, total, grid.rows);
  for (std::int64_t r = 0; r < grid.rows; ++r) {
    core::Rng for_row = rng.split(static_cast<std::uint64_t>(r) + 1);
    choose(
        for_row, grid.cols, share[r], [&](std::int64_t c) { return result.test(r, c); },
        [&](std::int64_t c) { result.set(r, c); });
  }
  return result;
}

}  // namespace sparseloom::pattern
