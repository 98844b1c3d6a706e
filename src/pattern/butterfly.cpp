// pattern::butterfly: the union of the factors of a fast Fourier transform.
#include <bit>

#include "core/check.h"
#include "pattern/grid.h"

namespace sparseloom::pattern {

BlockPattern butterfly(std::int64_t rows, std::int64_t cols, BlockShape block, std::int64_t factors) {
  const char* op = "pattern.butterfly";
  const std::int64_t shorter = require_nodes(op, rows, cols, block);
  const auto nodes = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(shorter)));
  const std::int64_t most = nodes == 0 ? 0 : std::countr_zero(static_cast<std::uint64_t>(nodes));
  if (factors < 0 || factors > most) {
    core::fail(
        op, "0 to " + std::to_string(most) + " factors, the logarithm of " + std::to_string(nodes) + " nodes",
        std::to_string(factors), "pass 0 for all of them");
  }
  BlockPattern graph = no_edges(nodes);
  for (std::int64_t node = 0; node < nodes; ++node) {
    graph.set(node, node);
    for (std::int64_t factor = 0; factor < (factors == 0 ? most : factors); ++factor)
      graph.set(node, node ^ (std::int64_t{1} << factor));
  }
  return stretched(graph, rows, cols, block);
}

}  // namespace sparseloom::pattern
