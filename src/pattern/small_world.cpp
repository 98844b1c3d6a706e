// pattern::small_world: path length, clustering, and both against a random graph.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "pattern/bit_rows.h"
#include "pattern/grid.h"
#include "sparseloom/pattern_graph.h"

namespace sparseloom::pattern {
namespace {

struct Paths {
  std::int64_t pairs = 0, steps = 0, longest = 0;  // ordered pairs of different nodes, their steps together
};

/// Adds the shortest paths from a node: each step reaches the neighbours of the nodes reached by the previous
/// one.
void add_paths(const BitRows& neighbours, std::int64_t nodes, std::int64_t from, Paths& paths) {
  BitRows seen(1, nodes);
  seen.set(0, from);
  std::vector<std::int64_t> frontier = {from};
  for (std::int64_t steps = 1; !frontier.empty(); ++steps) {
    BitRows next(1, nodes);
    for (const std::int64_t node : frontier) unite(next.row(0), neighbours.row(node));
    frontier.clear();
    for (std::size_t w = 0; w < next.row(0).size(); ++w) {
      for (std::uint64_t left = next.row(0)[w] & ~seen.row(0)[w]; left; left &= left - 1)
        frontier.push_back(static_cast<std::int64_t>(w) * 64 + std::countr_zero(left));
    }
    unite(seen.row(0), next.row(0));
    const auto reached = static_cast<std::int64_t>(frontier.size());
    paths.pairs += reached;
    paths.steps += reached * steps;
    if (reached > 0) paths.longest = std::max(paths.longest, steps);
  }
}

std::int64_t in_both(std::span<const std::uint64_t> a, std::span<const std::uint64_t> b) {
  std::int64_t both = 0;
  for (std::size_t w = 0; w < a.size(); ++w) both += std::popcount(a[w] & b[w]);
  return both;
}

}  // namespace

SmallWorld small_world(const BlockPattern& pattern) {
  const std::int64_t n = require_graph("pattern.small_world", pattern);
  SmallWorld result;
  result.nodes = n;
  if (n == 0) return result;
  BitRows neighbours(n, n);
  for (std::int64_t r = 0; r < n; ++r) {
    for (std::int64_t c = 0; c < n; ++c) {
      if (r == c || !pattern.test(r, c)) continue;
      neighbours.set(r, c);
      neighbours.set(c, r);
    }
  }
  result.degree_min = n;
  Paths paths;
  double clustering = 0;
  for (std::int64_t node = 0; node < n; ++node) {
    const std::int64_t degree = in_both(neighbours.row(node), neighbours.row(node));
    result.edges += degree;  // counted from both ends
    result.degree_min = std::min(result.degree_min, degree);
    result.degree_max = std::max(result.degree_max, degree);
    std::int64_t joined = 0;
    for (std::int64_t other = 0; other < n; ++other)
      if (neighbours.test(node, other)) joined += in_both(neighbours.row(node), neighbours.row(other));
    if (degree > 1) clustering += static_cast<double>(joined) / static_cast<double>(degree * (degree - 1));
    add_paths(neighbours, n, node, paths);
  }
  const auto nodes = static_cast<double>(n);
  result.degree_mean = static_cast<double>(result.edges) / nodes;
  result.edges /= 2;
  result.clustering = clustering / nodes;
  if (paths.pairs < n * (n - 1)) {
    result.path_length = result.diameter = std::numeric_limits<double>::infinity();
    return result;
  }
  result.diameter = static_cast<double>(paths.longest);
  if (n > 1) result.path_length = static_cast<double>(paths.steps) / static_cast<double>(paths.pairs);
  if (result.degree_mean > 1) {
    const double random_clustering = result.degree_mean / nodes;
    const double random_length = std::log(nodes) / std::log(result.degree_mean);
    result.figure = result.clustering / random_clustering / (result.path_length / random_length);
  }
  return result;
}

}  // namespace sparseloom::pattern
