// pattern::watts_strogatz and pattern::watts_strogatz_2d: lattices some of whose edges are rewired.
#include <algorithm>
#include <vector>

#include "core/check.h"
#include "pattern/grid.h"

namespace sparseloom::pattern {
namespace {

/// From a node to a neighbour: a number of lines down and of nodes to the right, around the edges of the
/// torus.
struct Offset {
  std::int64_t down = 0, right = 0;
};

struct Torus {
  std::int64_t height = 0, width = 0;
  std::int64_t nodes() const noexcept { return height * width; }
  std::int64_t from(std::int64_t node, Offset offset) const noexcept {
    const std::int64_t line = (node / width + offset.down) % height;
    const std::int64_t place = (node % width + offset.right + width) % width;
    return line * width + place;
  }
};

/// The farthest offset along a side such that it and its opposite lead to different nodes.
std::int64_t reach(std::int64_t side) { return (side - 1) / 2; }

/// Half of the k nearest neighbours, one of each pair of opposites, the nearest first; equally far ones from
/// the same line downwards, and from the left. k is checked already.
std::vector<Offset> nearest(Torus torus, std::int64_t k) {
  std::vector<Offset> offsets;
  // The k / 2 nearest of a half-plane lie within k / 2 steps in each direction.
  const std::int64_t down = std::min(reach(torus.height), k / 2), right = std::min(reach(torus.width), k / 2);
  for (std::int64_t i = 0; i <= down; ++i) {
    for (std::int64_t j = i == 0 ? 1 : -right; j <= right; ++j) offsets.push_back({i, j});
  }
  std::stable_sort(offsets.begin(), offsets.end(), [](Offset a, Offset b) {
    return a.down * a.down + a.right * a.right < b.down * b.down + b.right * b.right;
  });
  offsets.resize(static_cast<std::size_t>(k / 2));
  return offsets;
}

/// The largest divisor of n that is not above its root; 0 for n = 0.
std::int64_t squarest_height(std::int64_t n) {
  std::int64_t best = n == 0 ? 0 : 1;
  for (std::int64_t side = 2; side * side <= n; ++side)
    if (n % side == 0) best = side;
  return best;
}

void require_share(const char* op, double p) {
  if (!(p >= 0 && p <= 1))
    core::fail(op, "p in [0, 1]", std::to_string(p), "pass the share of edges to rewire, 0.1 for a tenth");
}

/// The lattice, rewired, with the diagonal. k is even, and no more than the torus has room for.
BlockPattern rewired(Torus torus, std::int64_t k, double p, std::uint64_t seed) {
  const std::int64_t n = torus.nodes();
  BlockPattern graph = no_edges(n);
  std::vector<std::int64_t> degree(static_cast<std::size_t>(n), k);
  const auto connect = [&](std::int64_t a, std::int64_t b, bool present) {
    graph.set(a, b, present);
    graph.set(b, a, present);
  };
  const std::vector<Offset> offsets = nearest(torus, k);
  for (const Offset offset : offsets) {
    for (std::int64_t node = 0; node < n; ++node) connect(node, torus.from(node, offset), true);
  }
  // Every edge once, the nearest neighbours first, as in the paper.
  core::Rng rng(seed);
  for (const Offset offset : offsets) {
    for (std::int64_t node = 0; node < n; ++node) {
      if (rng.uniform() >= p || degree[node] >= n - 1) continue;
      const std::int64_t before = torus.from(node, offset);
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

}  // namespace

BlockPattern watts_strogatz(std::int64_t rows, std::int64_t cols, BlockShape block, std::int64_t k, double p,
                            std::uint64_t seed) {
  const char* op = "pattern.watts_strogatz";
  const std::int64_t n = require_nodes(op, rows, cols, block);
  if (k < 0 || k % 2 != 0 || (k > 0 && k >= n)) {
    core::fail(op,
               "k even, from 0 to less than the " + std::to_string(n) +
                   " nodes, the grid's shorter side: " + "half of the neighbours lie on each side",
               std::to_string(k), "pass k=8, or use a smaller block");
  }
  require_share(op, p);
  return stretched(rewired({1, n}, k, p, seed), rows, cols, block);  // a ring is a torus of one line
}

BlockPattern watts_strogatz_2d(std::int64_t rows, std::int64_t cols, BlockShape block, std::int64_t k,
                               double p, std::uint64_t seed, std::int64_t height) {
  const char* op = "pattern.watts_strogatz_2d";
  const std::int64_t n = require_nodes(op, rows, cols, block);
  const std::string nodes = std::to_string(n) + " nodes, the grid's shorter side";
  if (height < 0 || height > n || (height > 0 && n % height != 0))
    core::fail(op, "a height that divides the " + nodes, std::to_string(height),
               "pass 0 for the squarest torus");
  const Torus torus = {height > 0 ? height : squarest_height(n),
                       n == 0 ? 0 : n / (height > 0 ? height : squarest_height(n))};
  // Around a side of two a node has one neighbour twice, and a side of one is no second dimension.
  if (n > 0 && (torus.height < 3 || torus.width < 3)) {
    core::fail(op, "a torus of at least 3 x 3 nodes",
               std::to_string(torus.height) + " x " + std::to_string(torus.width) + " of " + nodes,
               "use pattern.watts_strogatz for a ring, or another block");
  }
  const std::int64_t most = n == 0 ? 0 : (2 * reach(torus.height) + 1) * (2 * reach(torus.width) + 1) - 1;
  if (k < 0 || k % 2 != 0 || k > most) {
    core::fail(op,
               "k even, from 0 to " + std::to_string(most) + ", the neighbours on a torus of " +
                   std::to_string(torus.height) + " x " + std::to_string(torus.width),
               std::to_string(k), "pass k=8, or use a smaller block");
  }
  require_share(op, p);
  return stretched(rewired(torus, k, p, seed), rows, cols, block);
}

}  // namespace sparseloom::pattern
