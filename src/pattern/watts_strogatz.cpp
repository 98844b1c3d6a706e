#include <vector>

#include "core/check.h"
#include "pattern/grid.h"

namespace sparseloom::pattern {

BlockPattern watts_strogatz(std::int64_t rows, std::int64_t cols, BlockShape block, std::int64_t k, double p,
                            std::uint64_t seed) {
  const char* op = "pattern.watts_strogatz";
  const std::int64_t n = require_square(op, rows, cols, block);
  if (k < 0 || k % 2 != 0 || (k > 0 && k >= n)) {
    core::fail(op,
               "k even, from 0 to less than the grid's " + std::to_string(n) + " block rows: half of the " +
                   "neighbours lie on each side",
               std::to_string(k), "pass k=8, or use a smaller block");
  }
  if (!(p >= 0 && p <= 1))
    core::fail(op, "p in [0, 1]", std::to_string(p), "p is the share of edges that are rewired");
  BlockPattern graph(rows, cols, block);
  std::vector<std::int64_t> degree(static_cast<std::size_t>(n), k);
  const auto connect = [&](std::int64_t a, std::int64_t b, bool present) {
    graph.set(a, b, present);
    graph.set(b, a, present);
  };
  // The ring.
  for (std::int64_t distance = 1; distance <= k / 2; ++distance) {
    for (std::int64_t node = 0; node < n; ++node) connect(node, (node + distance) % n, true);
  }
  // Every clockwise edge once, the nearest neighbours first, as in the paper.
  core::Rng rng(seed);
  for (std::int64_t distance = 1; distance <= k / 2; ++distance) {
    for (std::int64_t node = 0; node < n; ++node) {
      if (rng.uniform() >= p || degree[node] >= n - 1) continue;
      const std::int64_t before = (node + distance) % n;
      std::int64_t target = node;
      while (target == node || graph.test(node, target)) {
        target = static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>(n)));
      }
      connect(node, before, false);
      connect(node, target, true);
      --degree[before];
      ++degree[target];
    }
  }
  for (std::int64_t node = 0; node < n; ++node) graph.set(node, node);
  return graph;
}

}  // namespace sparseloom::pattern
