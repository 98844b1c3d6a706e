// pattern::mixing and pattern::distances: how far signals spread in a number of steps.
#include "core/check.h"
#include "pattern/bit_rows.h"
#include "pattern/grid.h"
#include "sparseloom/pattern_graph.h"

namespace sparseloom::pattern {
namespace {

/// The most steps of one call: with more, a mistyped number would never end.
constexpr std::int64_t kMostSteps = 1000000;

/// Throws Error unless the inputs of `next` are the outputs of `pattern`.
void require_follows(const BlockPattern& pattern, const BlockPattern& next, const std::string& which) {
  if (next.cols() == pattern.rows() && next.block().cols == pattern.block().rows) return;
  core::fail("pattern.mixing",
             which + " to take the " + std::to_string(pattern.rows()) +
                 " features that the one before it gives, in blocks of " +
                 std::to_string(pattern.block().rows),
             std::to_string(next.cols()) + " in blocks of " + std::to_string(next.block().cols),
             "pass the patterns in the order in which signals meet them, [out, in] each");
}

/// The inputs that reach each output after one more pattern: row r unites the inputs of its columns.
BitRows step(const BlockPattern& pattern, const BitRows& reached, std::int64_t inputs) {
  BitRows next(pattern.block_rows(), inputs);
  for (std::int64_t r = 0; r < pattern.block_rows(); ++r) {
    for (std::int64_t c = 0; c < pattern.block_cols(); ++c)
      if (pattern.test(r, c)) unite(next.row(r), reached.row(c));
  }
  return next;
}

}  // namespace

std::vector<double> mixing(std::span<const BlockPattern> patterns, std::int64_t steps) {
  const char* op = "pattern.mixing";
  const auto count = static_cast<std::int64_t>(patterns.size());
  if (count == 0) core::fail(op, "at least one pattern", "none", "pass the pattern of a weight");
  if (steps < 0 || steps > kMostSteps)
    core::fail(op, "0 to " + std::to_string(kMostSteps) + " steps", std::to_string(steps),
               "pass 0 for one pass through the patterns");
  const bool until_still = steps == 0 && count == 1;
  const bool around = until_still || steps > count;
  for (std::int64_t i = around ? 0 : 1; i < count; ++i)
    require_follows(patterns[i == 0 ? count - 1 : i - 1], patterns[i], "pattern " + std::to_string(i));
  const std::int64_t inputs = patterns[0].block_cols();
  BitRows reached(inputs, inputs);
  for (std::int64_t i = 0; i < inputs; ++i) reached.set(i, i);
  std::vector<double> shares;
  for (std::int64_t t = 0; until_still || t < (steps == 0 ? count : steps); ++t) {
    const BlockPattern& pattern = patterns[t % count];
    reached = step(pattern, reached, inputs);
    const std::int64_t pairs = pattern.block_rows() * inputs;
    const double share = pairs == 0 ? 0 : static_cast<double>(reached.count()) / static_cast<double>(pairs);
    if (until_still && t > 0 && share <= shares.back()) break;
    shares.push_back(share);
  }
  return shares;
}

std::vector<std::int64_t> distances(const BlockPattern& pattern, std::int64_t start) {
  const char* op = "pattern.distances";
  const std::int64_t nodes = require_graph(op, pattern);
  if (start < 0 || start >= nodes) {
    core::fail(op, "a start among the " + std::to_string(nodes) + " blocks along each side",
               std::to_string(start), "pass the number of a block row, from 0");
  }
  std::vector<std::int64_t> steps(static_cast<std::size_t>(nodes), -1), order = {start};
  steps[start] = 0;
  for (std::size_t next = 0; next < order.size(); ++next) {
    const std::int64_t from = order[next];
    for (std::int64_t r = 0; r < nodes; ++r) {
      if (steps[r] >= 0 || !pattern.test(r, from)) continue;
      steps[r] = steps[from] + 1;
      order.push_back(r);
    }
  }
  return steps;
}

}  // namespace sparseloom::pattern
