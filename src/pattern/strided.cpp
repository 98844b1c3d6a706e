// pattern::strided and pattern::fixed: the two patterns of sparse transformers, in blocks.
#include "core/check.h"
#include "pattern/grid.h"

namespace sparseloom::pattern {
namespace {

void require_stride(const char* op, std::int64_t stride) {
  if (stride < 1)
    core::fail(op, "stride >= 1", std::to_string(stride), "pass about the root of the block rows");
}

/// The graph in which `joined(q, k)` says whether node q sees node k.
template <class Joined>
BlockPattern square(std::int64_t nodes, bool causal, Joined joined) {
  BlockPattern graph = no_edges(nodes);
  for (std::int64_t q = 0; q < nodes; ++q) {
    for (std::int64_t k = 0; k < (causal ? q + 1 : nodes); ++k)
      if (joined(q, k)) graph.set(q, k);
  }
  return graph;
}

}  // namespace

BlockPattern strided(std::int64_t rows, std::int64_t cols, BlockShape block, std::int64_t stride,
                     bool causal) {
  const char* op = "pattern.strided";
  const std::int64_t nodes = require_nodes(op, rows, cols, block);
  require_stride(op, stride);
  const BlockPattern graph = square(nodes, causal, [&](std::int64_t q, std::int64_t k) {
    const std::int64_t apart = q > k ? q - k : k - q;
    return apart < stride || apart % stride == 0;
  });
  return stretched(graph, rows, cols, block);
}

BlockPattern fixed(std::int64_t rows, std::int64_t cols, BlockShape block, std::int64_t stride,
                   std::int64_t summary, bool causal) {
  const char* op = "pattern.fixed";
  const std::int64_t nodes = require_nodes(op, rows, cols, block);
  require_stride(op, stride);
  if (summary < 1 || summary > stride) {
    core::fail(op, "summary from 1 to the stride, " + std::to_string(stride), std::to_string(summary),
               "pass how many columns at the end of each box all rows see");
  }
  const BlockPattern graph = square(nodes, causal, [&](std::int64_t q, std::int64_t k) {
    return q / stride == k / stride || k % stride >= stride - summary;
  });
  return stretched(graph, rows, cols, block);
}

}  // namespace sparseloom::pattern
