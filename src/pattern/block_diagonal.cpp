// pattern::block_diagonal: dense boxes along the diagonal, optionally with shuffled columns.
#include <algorithm>
#include <numeric>

#include "core/check.h"
#include "pattern/grid.h"

namespace sparseloom::pattern {
namespace {

/// The start of box g of `groups` along a side: at g / groups of its length, so that boxes differ by at most
/// one block and none is empty.
std::int64_t begin_of(std::int64_t g, std::int64_t side, std::int64_t groups) { return g * side / groups; }

/// The columns in the order in which a shuffle deals them: the first of each group, the second of each, ..
/// For groups of one size that is what reshaping to [groups, size] and transposing gives.
std::vector<std::int64_t> dealt(std::int64_t cols, std::int64_t groups) {
  std::vector<std::int64_t> order;
  for (std::int64_t place = 0; static_cast<std::int64_t>(order.size()) < cols; ++place) {
    for (std::int64_t g = 0; g < groups; ++g) {
      const std::int64_t col = begin_of(g, cols, groups) + place;
      if (col < begin_of(g + 1, cols, groups)) order.push_back(col);
    }
  }
  return order;
}

}  // namespace

BlockPattern block_diagonal(std::int64_t rows, std::int64_t cols, BlockShape block, std::int64_t groups,
                            bool shuffle) {
  const char* op = "pattern.block_diagonal";
  const Grid grid = require_grid(op, rows, cols, block);
  const std::int64_t most = std::min(grid.rows, grid.cols);
  if (groups < 1 || groups > most) {
    core::fail(op,
               "1 <= groups <= " + std::to_string(most) + ", the shorter side of the grid " +
                   core::shape(grid.rows, grid.cols),
               std::to_string(groups), "use fewer groups or a smaller block");
  }
  std::vector<std::int64_t> order(static_cast<std::size_t>(grid.cols));
  if (shuffle) {
    order = dealt(grid.cols, groups);
  } else {
    std::iota(order.begin(), order.end(), std::int64_t{0});
  }
  BlockPattern result(rows, cols, block);
  for (std::int64_t g = 0; g < groups; ++g) {
    for (std::int64_t r = begin_of(g, grid.rows, groups); r < begin_of(g + 1, grid.rows, groups); ++r) {
      for (std::int64_t c = begin_of(g, grid.cols, groups); c < begin_of(g + 1, grid.cols, groups); ++c)
        result.set(r, order[c]);
    }
  }
  return result;
}

}  // namespace sparseloom::pattern
