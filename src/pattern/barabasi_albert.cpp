#include <vector>

#include "core/check.h"
#include "pattern/grid.h"

namespace sparseloom::pattern {

BlockPattern barabasi_albert(std::int64_t rows, std::int64_t cols, BlockShape block, std::int64_t m,
                             std::uint64_t seed) {
  const char* op = "pattern.barabasi_albert";
  const std::int64_t n = require_nodes(op, rows, cols, block);
  if (m < 1 || m >= n) {
    core::fail(op, "m from 1 to less than the " + std::to_string(n) + " nodes, the grid's shorter side",
               std::to_string(m), "m is the number of edges that a new node brings: pass m=4");
  }
  BlockPattern graph = no_edges(n);
  // A node is listed once per edge, so that a uniform choice prefers nodes of many edges.
  std::vector<std::int64_t> ends;
  ends.reserve(static_cast<std::size_t>(2 * m * (n - m)));
  std::vector<std::int64_t> targets;
  core::Rng rng(seed);
  for (std::int64_t node = m; node < n; ++node) {
    targets.clear();
    if (node == m) {
      for (std::int64_t first = 0; first < m; ++first) targets.push_back(first);  // no edge exists yet
    }
    while (static_cast<std::int64_t>(targets.size()) < m) {
      const std::int64_t target = ends[rng.below(ends.size())];
      if (graph.test(node, target)) continue;
      graph.set(node, target);
      targets.push_back(target);
    }
    for (const std::int64_t target : targets) {
      graph.set(node, target);
      graph.set(target, node);
      ends.push_back(target);
      ends.push_back(node);
    }
  }
  // The first m nodes form a dense core. Its edges do not count as degrees: they would make hubs of the core
  // before any node has chosen it.
  for (std::int64_t node = 0; node < n; ++node) graph.set(node, node);
  for (std::int64_t r = 0; r < m; ++r) {
    for (std::int64_t c = 0; c < m; ++c) graph.set(r, c);
  }
  return stretched(graph, rows, cols, block);
}

}  // namespace sparseloom::pattern
