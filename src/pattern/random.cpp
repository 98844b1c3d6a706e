// pattern::random: blocks drawn uniformly over the whole grid.
#include "pattern/grid.h"

namespace sparseloom::pattern {

BlockPattern random(std::int64_t rows, std::int64_t cols, BlockShape block, double density,
                    std::uint64_t seed) {
  const char* op = "pattern.random";
  const Grid grid = require_grid(op, rows, cols, block);
  const std::int64_t total = require_total(op, grid, density);
  BlockPattern result(rows, cols, block);
  core::Rng rng(seed);
  // This draws over the whole grid at once. The pattern's own bits record the drawn blocks, so a total of any
  // size needs no list of cells.
  choose(
      rng, grid.cells(), total,
      [&](std::int64_t cell) { return result.test(cell / grid.cols, cell % grid.cols); },
      [&](std::int64_t cell) { result.set(cell / grid.cols, cell % grid.cols); });
  return result;
}

}  // namespace sparseloom::pattern
