// Patterns by chance: expanders and extra edges.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "core/expect_error.h"
#include "pattern/pictures.h"
#include "sparseloom/pattern.h"
#include "sparseloom/pattern_graph.h"

namespace sparseloom {
namespace {

using test::expect_error;
using test::from_picture;
using test::row_counts;

constexpr BlockShape kBlock{8, 8};

/// The second singular value of a biregular pattern: a power iteration on M^T M, at right angles to the ones.
double second_singular_value(const BlockPattern& pattern) {
  const std::int64_t rows = pattern.block_rows(), cols = pattern.block_cols();
  std::vector<double> v(static_cast<std::size_t>(cols));
  for (std::int64_t c = 0; c < cols; ++c) v[c] = std::sin(static_cast<double>(c * c + 1));
  double value = 0;
  for (int step = 0; step < 400; ++step) {
    double mean = 0, norm = 0;
    for (const double entry : v) mean += entry / static_cast<double>(cols);
    for (double& entry : v) entry -= mean, norm += entry * entry;
    for (double& entry : v) entry /= std::sqrt(norm);
    std::vector<double> w(static_cast<std::size_t>(rows)), next(v.size());
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < cols; ++c) w[r] += pattern.test(r, c) ? v[c] : 0;
    }
    value = 0;
    for (const double entry : w) value += entry * entry;
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < cols; ++c) next[c] += pattern.test(r, c) ? w[r] : 0;
    }
    v = next;
  }
  return std::sqrt(value);
}

TEST(Expander, HasTheDegreesAndTheSpectrumThatItPromises) {
  for (const std::int64_t rows : {24, 48, 96}) {
    for (const std::int64_t degree : {3, 6, 12}) {
      for (const std::uint64_t seed : {0u, 1u}) {
        const std::int64_t cols = 48;
        const BlockPattern made = pattern::expander(rows * 8, cols * 8, kBlock, degree, seed);
        const std::int64_t longer = std::max(rows, cols), other = degree * longer / std::min(rows, cols);
        const bool tall = rows >= cols;
        ASSERT_EQ(row_counts(made), std::vector<std::int64_t>(rows, tall ? degree : other));
        ASSERT_EQ(row_counts(made.transposed()), std::vector<std::int64_t>(cols, tall ? other : degree));
        const double bound =
            std::sqrt(static_cast<double>(degree - 1)) + std::sqrt(static_cast<double>(other - 1));
        // 2 % of what the generator's shorter iteration may miss.
        ASSERT_LE(second_singular_value(made), 1.05 * 1.02 * bound) << rows << ", " << degree;
      }
    }
  }
}

TEST(Expander, ExistsForAllSmallGrids) {
  for (const std::int64_t rows : {3, 4, 5, 7, 13}) {
    for (const std::int64_t cols : {3, 4, 6, 9, 50}) {
      for (const std::int64_t degree : {3, 4, 5, 9}) {
        if (degree > std::min(rows, cols)) continue;
        const BlockPattern made = pattern::expander(rows * 8, cols * 8, kBlock, degree, 1);
        EXPECT_EQ(made.count(), degree * std::max(rows, cols));
      }
    }
  }
}

// Every machine draws this one: a change of these bits is a change of every model that was made with a seed.
TEST(Expander, IsDrawnFromTheSeed) {
  EXPECT_EQ(pattern::expander(512, 512, kBlock, 5, 3), pattern::expander(512, 512, kBlock, 5, 3));
  EXPECT_NE(pattern::expander(512, 512, kBlock, 5, 3), pattern::expander(512, 512, kBlock, 5, 4));
  EXPECT_EQ(pattern::expander(48, 64, kBlock, 3, 2024),
            from_picture({"..#.#.##", ".###.#..", "#...##.#", "##.#...#", ".##..##.", "#..##.#."}));
}

TEST(Expander, RefusesDegreesThatAreNone) {
  expect_error("pattern.expander", {"3 to 8", "got 2"}, [] { pattern::expander(64, 80, kBlock, 2, 0); });
  expect_error("pattern.expander", {"3 to 8", "got 9"}, [] { pattern::expander(64, 80, kBlock, 9, 0); });
  expect_error("pattern.expander", {"got 3"}, [] { pattern::expander(16, 80, kBlock, 3, 0); });
}

TEST(ExtraEdges, JoinTheNodesOfFewestEdges) {
  const BlockPattern base = pattern::barabasi_albert(640, 640, kBlock, 2, 1);
  const BlockPattern made = pattern::extra_edges(base, 40, 7);
  EXPECT_EQ((made - base).count(), 80);
  EXPECT_EQ((base - made).count(), 0);
  EXPECT_EQ(made, made.transposed());
  // Each edge serves one node of the fewest, so that 80 nodes whose smallest degree is 2 have fewer of it.
  const auto fewest = [](const BlockPattern& pattern) {
    const std::vector<std::int64_t> counts = row_counts(pattern);
    return std::count(counts.begin(), counts.end(), 3);  // two edges and the diagonal
  };
  EXPECT_LE(fewest(made), fewest(base) - 40);
  // A ring that has only equal nodes stays within one edge of even.
  const std::vector<std::int64_t> ring =
      row_counts(pattern::extra_edges(pattern::watts_strogatz(80, 80, kBlock, 2, 0, 0), 5, 3));
  EXPECT_GE(*std::min_element(ring.begin(), ring.end()), 3);
}

TEST(ExtraEdges, FillWhateverIsEmptyAndLeaveOutTheDiagonal) {
  const BlockPattern empty(64, 64, kBlock);
  EXPECT_EQ(pattern::extra_edges(empty, 28, 1),
            pattern::full(64, 64, kBlock) - pattern::banded(64, 64, kBlock, 0));
  EXPECT_EQ(pattern::extra_edges(pattern::banded(64, 64, kBlock, 0), 28, 1), pattern::full(64, 64, kBlock));
  const BlockPattern wide(24, 96, kBlock);
  EXPECT_EQ(pattern::extra_edges(wide, 36, 1), pattern::full(24, 96, kBlock));
  // Of a grid that is not square edges are blocks, and no line stays empty that one of them could serve.
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const BlockPattern made = pattern::extra_edges(wide, 14, seed);
    ASSERT_EQ(made.count(), 14);
    ASSERT_EQ(made.transposed().stats().row_min, 1);
    ASSERT_GE(made.stats().row_min, 1);
  }
  EXPECT_EQ(pattern::extra_edges(BlockPattern(0, 0, kBlock), 0, 1).count(), 0);
}

TEST(ExtraEdges, AreDrawnFromTheSeed) {
  const BlockPattern base = pattern::random(320, 320, kBlock, 0.1, 2);
  EXPECT_EQ(pattern::extra_edges(base, 30, 5), pattern::extra_edges(base, 30, 5));
  EXPECT_NE(pattern::extra_edges(base, 30, 5), pattern::extra_edges(base, 30, 6));
  EXPECT_EQ((pattern::extra_edges(base, 30, 5) - base).count(), 30);
}

TEST(ExtraEdges, RefuseMoreThanThereIsRoomFor) {
  const BlockPattern ring = pattern::watts_strogatz(64, 64, kBlock, 2, 0, 0);
  expect_error("pattern.extra_edges", {"0 to 20", "got 21"}, [&] { pattern::extra_edges(ring, 21, 0); });
  expect_error("pattern.extra_edges", {"got -1"}, [&] { pattern::extra_edges(ring, -1, 0); });
}

}  // namespace
}  // namespace sparseloom
