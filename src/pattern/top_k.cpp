// pattern::top_k and pattern::top_k_by_row: the blocks with the highest scores.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/check.h"
#include "pattern/grid.h"

namespace sparseloom::pattern {
namespace {

// The grid. Throws Error on a wrong number of scores, a count outside the grid, or NaN.
Grid require_scores(const char* op, std::int64_t rows, std::int64_t cols, BlockShape block,
                    std::span<const float> scores, std::int64_t count) {
  const Grid grid = require_grid(op, rows, cols, block);
  if (static_cast<std::int64_t>(scores.size()) != grid.cells()) {
    core::fail(op,
               std::to_string(grid.cells()) + " scores, one per block of the grid " +
                   core::shape(grid.rows, grid.cols),
               std::to_string(scores.size()), "make them with block_scores");
  }
  if (count < 0 || count > grid.cells()) {
    core::fail(op, "0 <= count <= " + std::to_string(grid.cells()) + ", the blocks of the grid",
               std::to_string(count), "pass the number of blocks to keep");
  }
  for (std::int64_t i = 0; i < grid.cells(); ++i) {
    if (std::isnan(scores[i])) {
      core::fail(op, "scores without NaN",
                 "NaN at scores[" + std::to_string(i) + "], block row " + std::to_string(i / grid.cols) +
                     ", block column " + std::to_string(i % grid.cols),
                 "look for a NaN in the weight or its gradient");
    }
  }
  return grid;
}

// A total order of cells, in which ties go to the lowest index, so that the chosen set does not depend on the
// library's nth_element.
class Better {
 public:
  explicit Better(std::span<const float> scores) : scores_(scores) {}
  bool operator()(std::int64_t a, std::int64_t b) const {
    return scores_[a] != scores_[b] ? scores_[a] > scores_[b] : a < b;
  }

 private:
  std::span<const float> scores_;
};

void set_cell(BlockPattern& pattern, const Grid& grid, std::int64_t cell) {
  pattern.set(cell / grid.cols, cell % grid.cols);
}

}  // namespace

BlockPattern top_k(std::int64_t rows, std::int64_t cols, BlockShape block, std::span<const float> scores,
                   std::int64_t count) {
  const Grid grid = require_scores("pattern.top_k", rows, cols, block, scores, count);
  std::vector<std::int64_t> cells(scores.size());
  std::iota(cells.begin(), cells.end(), std::int64_t{0});
  std::nth_element(cells.begin(), cells.begin() + count, cells.end(), Better(scores));
  BlockPattern result(rows, cols, block);
  for (std::int64_t i = 0; i < count; ++i) set_cell(result, grid, cells[i]);
  return result;
}

BlockPattern top_k_by_row(std::int64_t rows, std::int64_t cols, BlockShape block,
                          std::span<const float> scores, std::int64_t count) {
  const Grid grid = require_scores("pattern.top_k_by_row", rows, cols, block, scores, count);
  BlockPattern result(rows, cols, block);
  if (count == 0) return result;
  const std::int64_t share = count / grid.rows, left = count % grid.rows;
  std::vector<std::int64_t> cells(static_cast<std::size_t>(grid.cols)), next_best;
  for (std::int64_t r = 0; r < grid.rows; ++r) {
    std::iota(cells.begin(), cells.end(), r * grid.cols);
    std::nth_element(cells.begin(), cells.begin() + share, cells.end(), Better(scores));
    for (std::int64_t i = 0; i < share; ++i) set_cell(result, grid, cells[i]);
    // nth_element leaves the best of the row's other cells at `share`.
    if (share < grid.cols) next_best.push_back(cells[share]);
  }
  // A full grid is the only one without next best cells, and there `left` is zero.
  std::nth_element(next_best.begin(), next_best.begin() + left, next_best.end(), Better(scores));
  for (std::int64_t i = 0; i < left; ++i) set_cell(result, grid, next_best[i]);
  return result;
}

}  // namespace sparseloom::pattern
