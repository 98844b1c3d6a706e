// pattern::biregular: distributes the blocks evenly over rows and columns, then mixes them with trades that
// keep both counts.
#include <algorithm>
#include <bit>
#include <iterator>
#include <numeric>
#include <utility>

#include "pattern/grid.h"

namespace sparseloom::pattern {
namespace {

using Columns = std::vector<std::int32_t>;

void shuffle(core::Rng& rng, std::vector<std::int32_t>& items) {
  for (std::size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[rng.below(i)]);
}

std::vector<std::int32_t> drawn_order(core::Rng& rng, std::int64_t n) {
  std::vector<std::int32_t> order(static_cast<std::size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  shuffle(rng, order);
  return order;
}

/// Deals the columns round and round; each row takes its share of consecutive ones. No row gets a column
/// twice, since no share exceeds the number of columns. After `total` cards every column was dealt floor or
/// ceil(total / columns) times, so this works for every grid, square or not. The columns are dealt in a
/// random order, so the ones with the larger share are random too.
std::vector<Columns> deal(core::Rng& rng, Grid grid, std::int64_t total) {
  const std::vector<std::int64_t> share = even_shares(rng, total, grid.rows);
  const std::vector<std::int32_t> order = drawn_order(rng, grid.cols);
  std::vector<Columns> rows(static_cast<std::size_t>(grid.rows));
  std::int64_t next = 0;
  for (std::int64_t r = 0; r < grid.rows; ++r) {
    for (std::int64_t i = 0; i < share[r]; ++i, ++next) rows[r].push_back(order[next % grid.cols]);
    std::sort(rows[r].begin(), rows[r].end());
  }
  return rows;
}

/// Pools the columns that only one of two rows has and redistributes them, each row getting back as many as
/// it gave. These are many 2x2 swaps at once, which change no row's and no column's sum.
void trade(core::Rng& rng, Columns& a, Columns& b) {
  Columns both, pool, to_a, to_b;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
  std::set_symmetric_difference(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(pool));
  std::size_t wanted = a.size() - both.size();  // how many of the columns still in the pool go to a
  for (std::size_t i = 0; i < pool.size(); ++i) {
    const bool goes_to_a = rng.below(pool.size() - i) < wanted;
    wanted -= goes_to_a;
    (goes_to_a ? to_a : to_b).push_back(pool[i]);
  }
  a.clear();
  b.clear();
  std::merge(both.begin(), both.end(), to_a.begin(), to_a.end(), std::back_inserter(a));
  std::merge(both.begin(), both.end(), to_b.begin(), to_b.end(), std::back_inserter(b));
}

/// Runs rounds in which every row trades once with a random partner ("global curveball", Carstens, Berger &
/// Strona 2018; its limit is the uniform distribution). Rejected: single 2x2 swaps, which need about ten for
/// each block and more random memory accesses.
void mix(core::Rng& rng, std::vector<Columns>& rows) {
  // A column can reach 2^k rows in k rounds, hence the logarithm. It is doubled, with ten more rounds as a
  // margin (1024 rows: 32 rounds).
  const int rounds = 10 + 2 * std::bit_width(rows.size());
  for (int round = 0; round < rounds; ++round) {
    const std::vector<std::int32_t> partner = drawn_order(rng, static_cast<std::int64_t>(rows.size()));
    for (std::size_t i = 1; i < partner.size(); i += 2) trade(rng, rows[partner[i - 1]], rows[partner[i]]);
  }
}

}  // namespace

BlockPattern biregular(std::int64_t rows, std::int64_t cols, BlockShape block, double density,
                       std::uint64_t seed) {
  const char* op = "pattern.biregular";
  const Grid grid = require_grid(op, rows, cols, block);
  const std::int64_t total = require_total(op, grid, density);
  if (grid.cells() == 0) return {rows, cols, block};  // one side may have 2^31 lines
  // Draw whichever is rarer, present or absent blocks: the complement of a bi-regular pattern is bi-regular.
  const bool draw_absent = total > grid.cells() / 2;
  core::Rng rng(seed);
  std::vector<Columns> drawn = deal(rng, grid, draw_absent ? grid.cells() - total : total);
  mix(rng, drawn);
  BlockPattern result(rows, cols, block);
  for (std::int64_t r = 0; r < grid.rows; ++r) {
    for (const std::int32_t c : drawn[r]) result.set(r, c);
  }
  return draw_absent ? ~result : result;
}

}  // namespace sparseloom::pattern
