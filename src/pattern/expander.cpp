// pattern::expander: biregular patterns, drawn until one has the spectrum of a good expander.
#include <algorithm>
#include <vector>

#include "core/check.h"
#include "pattern/grid.h"

namespace sparseloom::pattern {
namespace {

__extension__ using Wide = __int128;

constexpr int kDraws = 100;
/// Steps of the power iteration. Its result is below the true value; after 100 steps, over 150 patterns of 24
/// to 576 lines and degrees 3 to 17, by at most 2 %.
constexpr int kSteps = 100;
constexpr int kBits = 30;   // vectors hold whole numbers below 2^30
constexpr int kScale = 16;  // the bound has 16 fractional bits

/// The largest whole number whose square is at most x.
Wide root(Wide x) {
  Wide result = 0;
  for (Wide bit = Wide{1} << 62; bit > 0; bit >>= 1)
    if ((result + bit) * (result + bit) <= x) result += bit;
  return result;
}

/// Divides by a power of two, so that every entry lies below 2^kBits.
void shrink(std::vector<std::int64_t>& vector) {
  std::int64_t largest = 0;
  for (const std::int64_t entry : vector) largest = std::max(largest, entry < 0 ? -entry : entry);
  int shift = 0;
  while (largest >> shift >= std::int64_t{1} << kBits) ++shift;
  for (std::int64_t& entry : vector) entry >>= shift;
}

/// A pattern minus its even share, r c^T / total: the rest of a biregular matrix without its first singular
/// value. All numbers are whole, so that every machine computes the same.
class Deviation {
 public:
  explicit Deviation(const BlockPattern& pattern)
      : across_(static_cast<std::size_t>(pattern.block_rows())),
        down_(static_cast<std::size_t>(pattern.block_cols())),
        total_(pattern.count()) {
    for (std::int64_t r = 0; r < pattern.block_rows(); ++r) {
      for (std::int64_t c = 0; c < pattern.block_cols(); ++c) {
        if (!pattern.test(r, c)) continue;
        across_[r].push_back(c);
        down_[c].push_back(r);
      }
    }
  }

  /// Whether |D v| <= limit |v| for a v that a power iteration has turned towards the largest such ratio.
  /// `limit` is the square of that number, times 2^kScale.
  bool within(Wide limit, core::Rng rng) const {
    std::vector<std::int64_t> v(down_.size());
    for (std::int64_t& entry : v)
      entry = static_cast<std::int64_t>(rng.below(std::uint64_t{1} << kBits)) - (1 << (kBits - 1));
    Wide before = 0, after = 0;
    for (int step = 0; step < kSteps; ++step) {
      before = square(v);
      std::vector<std::int64_t> w = times(across_, down_, v);
      after = square(w);
      shrink(w);
      v = times(down_, across_, w);
      shrink(v);
    }
    return (after << kScale) <= limit * before;
  }

 private:
  using Lists = std::vector<std::vector<std::int64_t>>;

  static Wide square(const std::vector<std::int64_t>& vector) {
    Wide sum = 0;
    for (const std::int64_t entry : vector) sum += Wide{entry} * entry;
    return sum;
  }

  std::vector<std::int64_t> times(const Lists& lines, const Lists& others,
                                  const std::vector<std::int64_t>& v) const {
    Wide weighted = 0;
    for (std::size_t j = 0; j < v.size(); ++j)
      weighted += Wide{static_cast<std::int64_t>(others[j].size())} * v[j];
    std::vector<std::int64_t> result;
    result.reserve(lines.size());
    for (const std::vector<std::int64_t>& line : lines) {
      std::int64_t sum = 0;
      for (const std::int64_t j : line) sum += v[j];
      result.push_back(sum -
                       static_cast<std::int64_t>(weighted * static_cast<std::int64_t>(line.size()) / total_));
    }
    return result;
  }

  Lists across_, down_;
  std::int64_t total_;
};

/// (1.05 (sqrt(a - 1) + sqrt(b - 1)))^2 times 2^kScale, for the degrees a and b = total / shorter of the two
/// sides.
Wide bound(std::int64_t degree, std::int64_t total, std::int64_t shorter) {
  const Wide a = degree - 1, b = total - shorter;  // the second over `shorter`
  const Wide both = (a << kScale) + (b << kScale) / shorter + 2 * root((a * b << (2 * kScale)) / shorter);
  return both * 441 / 400;
}

}  // namespace

BlockPattern expander(std::int64_t rows, std::int64_t cols, BlockShape block, std::int64_t degree,
                      std::uint64_t seed) {
  const char* op = "pattern.expander";
  const Grid grid = require_grid(op, rows, cols, block);
  const std::int64_t shorter = std::min(grid.rows, grid.cols), longer = std::max(grid.rows, grid.cols);
  if (degree < 3 || degree > shorter) {
    core::fail(op,
               "degree from 3 to " + std::to_string(shorter) + ", the shorter side of the grid " +
                   core::shape(grid.rows, grid.cols) + ": below 3 every graph would pass",
               std::to_string(degree), "pass degree=8, or use pattern.biregular");
  }
  const std::int64_t total = longer * degree;
  const Wide limit = bound(degree, total, shorter);
  const core::Rng rng(seed);
  for (std::uint64_t draw = 0; draw < kDraws; ++draw) {
    const double density = static_cast<double>(total) / static_cast<double>(grid.cells());
    BlockPattern drawn = biregular(rows, cols, block, density, rng.split(2 * draw).next());
    if (Deviation(drawn).within(limit, rng.split(2 * draw + 1))) return drawn;
  }
  core::fail(op, "an expander among " + std::to_string(kDraws) + " biregular patterns",
             "none of degree " + std::to_string(degree) + " on the grid " + core::shape(grid.rows, grid.cols),
             "pass a larger degree, or use pattern.biregular");
}

}  // namespace sparseloom::pattern
