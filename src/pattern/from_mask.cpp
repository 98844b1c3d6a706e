// pattern::full and pattern::from_mask.
#include "core/check.h"
#include "pattern/grid.h"

namespace sparseloom::pattern {

BlockPattern full(std::int64_t rows, std::int64_t cols, BlockShape block) {
  return ~BlockPattern(rows, cols, block);
}

BlockPattern from_mask(std::int64_t rows, std::int64_t cols, BlockShape block,
                       std::span<const std::uint8_t> mask) {
  const char* op = "pattern.from_mask";
  const Grid grid = require_grid(op, rows, cols, block);
  if (static_cast<std::int64_t>(mask.size()) != grid.cells()) {
    core::fail(
        op,
        "a mask of " + core::shape(grid.rows, grid.cols) + " = " + std::to_string(grid.cells()) + " blocks",
        std::to_string(mask.size()) + " entries", "pass one entry per block, not per element");
  }
  BlockPattern result(rows, cols, block);
  if (mask.empty()) return result;  // one side may have 2^31 lines
  for (std::int64_t r = 0; r < grid.rows; ++r) {
    for (std::int64_t c = 0; c < grid.cols; ++c) result.set(r, c, mask[r * grid.cols + c] != 0);
  }
  return result;
}

}  // namespace sparseloom::pattern
