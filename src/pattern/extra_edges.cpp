// pattern::extra_edges: random edges for the nodes that have the fewest.
#include <vector>

#include "core/check.h"
#include "pattern/grid.h"

namespace sparseloom::pattern {
namespace {

bool symmetric(const BlockPattern& pattern) {
  if (pattern.block_rows() != pattern.block_cols()) return false;
  for (std::int64_t r = 0; r < pattern.block_rows(); ++r) {
    for (std::int64_t c = 0; c < r; ++c)
      if (pattern.test(r, c) != pattern.test(c, r)) return false;
  }
  return true;
}

/// A line of blocks as a node: a block row, or with `column` a block column.
struct Line {
  bool column = false;
  std::int64_t i = 0;
};

/// The present blocks of all lines, and the choice of the emptiest line and of a gap in it.
class Lines {
 public:
  explicit Lines(BlockPattern& pattern) : pattern_(pattern), alike_(symmetric(pattern)) {
    rows_.resize(static_cast<std::size_t>(pattern.block_rows()));
    cols_.resize(static_cast<std::size_t>(pattern.block_cols()));
    for (std::int64_t r = 0; r < pattern.block_rows(); ++r) {
      for (std::int64_t c = 0; c < pattern.block_cols(); ++c) {
        // A node of a graph is not joined to itself, whether or not the diagonal is present.
        if (!gap(r, c)) ++rows_[r], ++cols_[c];
      }
    }
  }

  /// The edges that can still be added.
  std::int64_t room() const {
    std::int64_t gaps = 0;
    for (const std::int64_t present : rows_) gaps += pattern_.block_cols() - present;
    return alike_ ? gaps / 2 : gaps;
  }

  /// A line of the smallest share of present blocks; equally empty ones are equally probable.
  Line emptiest(core::Rng& rng) const {
    Line best;
    std::int64_t ties = 0;
    const auto look = [&](bool column, const std::vector<std::int64_t>& counts) {
      for (std::size_t i = 0; i < counts.size(); ++i) {
        const Line line = {column, static_cast<std::int64_t>(i)};
        // Shares of lines of different lengths, multiplied out.
        const std::int64_t scaled_count = ties == 0 ? -1 : counts[i] * length(best),
                           least = present(best) * length(line);
        if (scaled_count > least) continue;
        ties = scaled_count == least ? ties + 1 : 1;
        if (rng.below(static_cast<std::uint64_t>(ties)) == 0) best = line;
      }
    };
    look(false, rows_);
    if (!alike_) look(true, cols_);
    return best;
  }

  /// Fills a gap of the line, drawn uniformly; there is one.
  void fill_gap(Line line, core::Rng& rng) {
    auto nth = static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>(length(line) - present(line))));
    for (std::int64_t other = 0;; ++other) {
      const std::int64_t r = line.column ? other : line.i, c = line.column ? line.i : other;
      if (!gap(r, c) || nth-- > 0) continue;
      add(r, c);
      if (alike_) add(c, r);
      return;
    }
  }

 private:
  bool gap(std::int64_t r, std::int64_t c) const { return !pattern_.test(r, c) && !(alike_ && r == c); }
  std::int64_t length(Line line) const { return line.column ? pattern_.block_rows() : pattern_.block_cols(); }
  std::int64_t present(Line line) const { return line.column ? cols_[line.i] : rows_[line.i]; }
  void add(std::int64_t r, std::int64_t c) {
    pattern_.set(r, c);
    ++rows_[r], ++cols_[c];
  }

  BlockPattern& pattern_;
  bool alike_;  // rows and columns are the same nodes
  std::vector<std::int64_t> rows_, cols_;
};

}  // namespace

BlockPattern extra_edges(const BlockPattern& pattern, std::int64_t edges, std::uint64_t seed) {
  BlockPattern result = pattern;
  Lines lines(result);
  const std::int64_t room = lines.room();
  if (edges < 0 || edges > room) {
    core::fail("pattern.extra_edges", "0 to " + std::to_string(room) + " edges, those that are absent",
               std::to_string(edges), "add fewer, or begin with a sparser pattern");
  }
  core::Rng rng(seed);
  for (std::int64_t edge = 0; edge < edges; ++edge) lines.fill_gap(lines.emptiest(rng), rng);
  return result;
}

}  // namespace sparseloom::pattern
