// pattern::block_diagonal: dense boxes along the diagonal.
#include <algorithm>

#include "core/check.h"
#include "pattern/grid.h"

namespace sparseloom::pattern {

BlockPattern block_diagonal(std::int64_t rows, std::int64_t cols, BlockShape block, std::int64_t groups) {
  const char* op = "pattern.block_diagonal";
  const Grid grid = require_grid(op, rows, cols, block);
  const std::int64_t most = std::min(grid.rows, grid.cols);
  if (groups < 1 || groups > most) {
    core::fail(op,
               "1 <= groups <= " + std::to_string(most) + ", the shorter side of the grid " +
                   core::shape(grid.rows, grid.cols),
               std::to_string(groups), "use fewer groups or a smaller block");
  }
  BlockPattern result(rows, cols, block);
  for (std::int64_t g = 0; g < groups; ++g) {
    // Both sides are cut at g / groups of their length, so that boxes differ by at most one block and none is
    // empty.
    const std::int64_t row_end = (g + 1) * grid.rows / groups, col_end = (g + 1) * grid.cols / groups;
    for (std::int64_t r = g * grid.rows / groups; r < row_end; ++r) {
      for (std::int64_t c = g * grid.cols / groups; c < col_end; ++c) result.set(r, c);
    }
  }
  return result;
}

}  // namespace sparseloom::pattern
