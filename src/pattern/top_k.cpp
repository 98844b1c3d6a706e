#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/check.h"
#include "pattern/grid.h"

namespace sparseloom::pattern {

BlockPattern top_k(std::int64_t rows, std::int64_t cols, BlockShape block, std::span<const float> scores, std::int64_t count) {
  const char* op = "pattern.top_k";
  const Grid grid = require_grid(op, rows, cols, block);
  if (static_cast<std::int64_t>(scores.size()) != grid.cells()) {
    core::fail(op, std::to_string(grid.cells()) + " scores, one per block of the grid " + core::shape(grid.rows, grid.cols),
               std::to_string(scores.size()), "make them with block_scores");
  }
  if (count < 0 || count > grid.cells()) {
    core::fail(op, "0 <= count <= " + std::to_string(grid.cells()) + ", the blocks of the grid", std::to_string(count),
               "pass the number of blocks to keep");
  }
  for (std::int64_t i = 0; i < grid.cells(); ++i) {
    if (std::isnan(scores[i])) {
      core::fail(op, "scores without NaN",
                 "NaN at scores[" + std::to_string(i) + "], block row " + std::to_string(i / grid.cols) + ", block column " +
                     std::to_string(i % grid.cols),
                 "look for a NaN in the weight or its gradient");
    }
  }
  std::vector<std::int64_t> best(scores.size());
  std::iota(best.begin(), best.end(), std::int64_t{0});
  // A total order, so the chosen set does not depend on the library's nth_element.
  const auto before = [&](std::int64_t a, std::int64_t b) { return scores[a] != scores[b] ? scores[a] > scores[b] : a < b; };
  std::nth_element(best.begin(), best.begin() + count, best.end(), before);
  BlockPattern result(rows, cols, block);
  for (std::int64_t i = 0; i < count; ++i) result.set(best[i] / grid.cols, best[i] % grid.cols);
  return result;
}

}  // namespace sparseloom::pattern
