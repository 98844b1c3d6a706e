// pattern::banded: the blocks near the diagonal of the grid.
#include <algorithm>

#include "core/check.h"
#include "pattern/grid.h"

namespace sparseloom::pattern {

BlockPattern banded(std::int64_t rows, std::int64_t cols, BlockShape block, std::int64_t bandwidth) {
  const char* op = "pattern.banded";
  const Grid grid = require_grid(op, rows, cols, block);
  if (bandwidth < 0)
    core::fail(op, "bandwidth >= 0", std::to_string(bandwidth), "pass 0 for the diagonal only");
  BlockPattern result(rows, cols, block);
  const bool tall = grid.rows > grid.cols;
  const std::int64_t longer = std::max(grid.rows, grid.cols);
  const std::int64_t shorter = std::min(grid.rows, grid.cols);
  if (shorter == 0) return result;
  const std::int64_t reach = std::min(bandwidth, shorter);
  for (std::int64_t i = 0; i < longer; ++i) {
    const std::int64_t centre = stretched_line(i, longer, shorter);
    for (std::int64_t j = std::max<std::int64_t>(0, centre - reach);
         j <= std::min(shorter - 1, centre + reach); ++j) {
      tall ? result.set(i, j) : result.set(j, i);
    }
  }
  return result;
}

}  // namespace sparseloom::pattern
