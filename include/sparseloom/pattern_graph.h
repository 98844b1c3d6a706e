// How fast signals spread through patterns: mixing, distances, and the figures of small worlds.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sparseloom/export.h"
#include "sparseloom/pattern.h"

namespace sparseloom::pattern {

/// The share of (input block, output block) pairs that are joined by a path, after 1, 2, .. steps, in [0, 1].
/// Step t goes from the block columns to the block rows of patterns[t]; after the last pattern the first
/// follows again.
///
/// `steps` is the number of shares. 0 stands for one pass through the patterns; for a single pattern, for as
/// many steps as raise the share (at least one). Throws Error for no pattern, for negative steps, and if the
/// inputs of a pattern are not the outputs of the previous one (as many features, in blocks of one size).
SPARSELOOM_API std::vector<double> mixing(std::span<const BlockPattern> patterns, std::int64_t steps = 0);

/// The number of steps that a signal takes from block `start` to each block of a square grid, by the shortest
/// path, as in mixing; -1 where none leads there. Throws Error on a grid that is not square, or a start
/// outside it.
SPARSELOOM_API std::vector<std::int64_t> distances(const BlockPattern& pattern, std::int64_t start);

/// Figures of a pattern's graph: its nodes are the lines of a square grid, and two different ones are joined
/// where either of their two blocks is present.
struct SmallWorld {
  std::int64_t nodes = 0, edges = 0;
  std::int64_t degree_min = 0, degree_max = 0;  // edges of a node
  double degree_mean = 0;
  /// The mean and the largest number of steps between two nodes; infinite when a pair is not joined at all, 0
  /// for fewer than two nodes.
  double path_length = 0, diameter = 0;
  /// The mean over all nodes of the share of pairs of neighbours that are joined; 0 for a node with fewer
  /// than two of them (Watts & Strogatz 1998).
  double clustering = 0;
  /// (clustering / that of a random graph) / (path_length / that of a random graph), where a random graph of
  /// n nodes with k edges each has k / n and ln n / ln k (Humphries & Gurney 2008; Watts & Strogatz 1998).
  /// Above 1 is a small world. 0 where it is not defined: k <= 1, or a pair that is not joined.
  double figure = 0;
};

/// Throws Error on a grid that is not square.
SPARSELOOM_API SmallWorld small_world(const BlockPattern& pattern);

}  // namespace sparseloom::pattern
