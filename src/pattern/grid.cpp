// The checks and helpers that all generators share.
#include "pattern/grid.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/check.h"

namespace sparseloom::pattern {
namespace {

constexpr std::int64_t kMaxSide = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kMaxElements = std::int64_t{1} << 60;  // times 8 bytes still fits int64

// This avoids the sum in core::ceil_div, which overflows for sizes near 2^63.
std::int64_t blocks_along(std::int64_t size, std::int64_t side) { return size / side + (size % side != 0); }

}  // namespace

Grid require_grid(const char* op, std::int64_t rows, std::int64_t cols, BlockShape block) {
  require_supported(op, block);
  if (rows < 0 || cols < 0)
    core::fail(op, "rows >= 0 and cols >= 0", core::shape(rows, cols), "pass the matrix's size");
  const Grid grid{blocks_along(rows, block.rows), blocks_along(cols, block.cols)};
  if (grid.rows > kMaxSide || grid.cols > kMaxSide) {
    core::fail(op, "at most 2^31 - 1 blocks along each side",
               core::shape(grid.rows, grid.cols) + " blocks of " + to_string(block), "use a larger block");
  }
  std::int64_t elements = 0;
  const bool overflow = __builtin_mul_overflow(grid.rows * block.rows, grid.cols * block.cols, &elements);
  if (overflow || elements > kMaxElements) {
    core::fail(op, "at most 2^60 elements", core::shape(rows, cols), "split the matrix");
  }
  return grid;
}

std::int64_t require_nodes(const char* op, std::int64_t rows, std::int64_t cols, BlockShape block) {
  const Grid grid = require_grid(op, rows, cols, block);
  return std::min(grid.rows, grid.cols);
}

std::int64_t require_graph(const char* op, const BlockPattern& pattern) {
  if (pattern.block_rows() != pattern.block_cols()) {
    core::fail(
        op, "as many block rows as block columns: both are the nodes of one graph",
        core::shape(pattern.block_rows(), pattern.block_cols()) + " blocks of " + to_string(pattern.block()),
        "ask pattern.mixing how signals spread through other grids");
  }
  return pattern.block_rows();
}

BlockPattern no_edges(std::int64_t nodes) {
  constexpr BlockShape kAnyBlock{8, 8};
  return BlockPattern(nodes * kAnyBlock.rows, nodes * kAnyBlock.cols, kAnyBlock);
}

BlockPattern stretched(const BlockPattern& graph, std::int64_t rows, std::int64_t cols, BlockShape block) {
  BlockPattern result(rows, cols, block);
  const std::int64_t nodes = graph.block_rows();
  if (nodes == 0) return result;  // the longer side may have 2^31 lines
  std::vector<std::int64_t> node_of(static_cast<std::size_t>(result.block_cols()));
  for (std::int64_t c = 0; c < result.block_cols(); ++c)
    node_of[c] = stretched_line(c, result.block_cols(), nodes);
  for (std::int64_t r = 0; r < result.block_rows(); ++r) {
    const std::int64_t node = stretched_line(r, result.block_rows(), nodes);
    for (std::int64_t c = 0; c < result.block_cols(); ++c)
      if (graph.test(node, node_of[c])) result.set(r, c);
  }
  return result;
}

std::int64_t require_total(const char* op, Grid grid, double density) {
  if (!(density >= 0 && density <= 1)) {
    core::fail(op, "a density in [0, 1]", std::to_string(density),
               "pass the share of blocks to keep, 0.1 for a tenth");
  }
  // min, because beyond 2^53 cells the product is rounded and could exceed the grid.
  return std::min<std::int64_t>(std::llround(density * static_cast<double>(grid.cells())), grid.cells());
}

std::vector<std::int64_t> even_shares(core::Rng& rng, std::int64_t total, std::int64_t parts) {
  if (parts == 0) return {};
  const std::int64_t floor = total / parts;
  std::vector<std::int64_t> shares(static_cast<std::size_t>(parts), floor);
  choose(
      rng, parts, total % parts, [&](std::int64_t i) { return shares[i] != floor; },
      [&](std::int64_t i) { ++shares[i]; });
  return shares;
}

}  // namespace sparseloom::pattern
