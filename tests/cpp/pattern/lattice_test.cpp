// Patterns by rule: Watts-Strogatz on a torus, strided and fixed, butterfly.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "core/expect_error.h"
#include "pattern/pictures.h"
#include "sparseloom/pattern.h"

namespace sparseloom {
namespace {

using test::expect_error;
using test::from_picture;
using test::row_counts;

constexpr BlockShape kBlock{8, 8};

BlockPattern torus(std::int64_t nodes, std::int64_t k, double p, std::int64_t height = 0,
                   std::uint64_t seed = 5) {
  return pattern::watts_strogatz_2d(nodes * 8 - 3, nodes * 8, kBlock, k, p, seed, height);
}

/// Steps between two positions on a ring.
std::int64_t around(std::int64_t a, std::int64_t b, std::int64_t side) {
  const std::int64_t apart = std::abs(a - b);
  return std::min(apart, side - apart);
}

TEST(Torus, JoinsTheNearestInThePlane) {
  // k and the squares of the distances that it covers wholly.
  const std::vector<std::pair<std::int64_t, std::int64_t>> shells = {
      {4, 1}, {8, 2}, {12, 4}, {20, 5}, {24, 8}};
  const std::int64_t height = 7, width = 9;
  for (const auto& [k, square] : shells) {
    const BlockPattern made = torus(height * width, k, 0, height);
    for (std::int64_t a = 0; a < height * width; ++a) {
      for (std::int64_t b = 0; b < height * width; ++b) {
        const std::int64_t down = around(a / width, b / width, height),
                           right = around(a % width, b % width, width);
        ASSERT_EQ(made.test(a, b), down * down + right * right <= square)
            << "k " << k << ": " << a << ", " << b;
      }
    }
  }
}

TEST(Torus, KeepsItsEdgesAndItsSymmetryWhenRewired) {
  for (const std::int64_t nodes : {9, 12, 25, 64, 90}) {
    for (const std::int64_t k : {0, 2, 4, 6, 8}) {
      for (const double p : {0.0, 0.2, 1.0}) {
        if (nodes == 12 && k > 6) continue;
        const BlockPattern made = torus(nodes, k, p);
        ASSERT_EQ(made.count(), nodes * (k + 1)) << nodes << ", " << k << ", " << p;
        for (std::int64_t r = 0; r < nodes; ++r) {
          ASSERT_TRUE(made.test(r, r));
          for (std::int64_t c = 0; c < r; ++c) ASSERT_EQ(made.test(r, c), made.test(c, r));
        }
      }
    }
  }
  EXPECT_EQ(pattern::watts_strogatz_2d(0, 0, kBlock, 0, 0.5, 1).count(), 0);
  EXPECT_NE(torus(64, 8, 0.3, 0, 1), torus(64, 8, 0.3, 0, 2));
}

TEST(Torus, IsTheSquarestUnlessSaidOtherwise) {
  EXPECT_EQ(torus(64, 8, 0.3), torus(64, 8, 0.3, 8));
  EXPECT_EQ(torus(90, 8, 0.3), torus(90, 8, 0.3, 9));
  EXPECT_NE(torus(64, 8, 0), torus(64, 8, 0, 4));
}

TEST(Torus, RefusesWhatIsNone) {
  const char* op = "pattern.watts_strogatz_2d";
  expect_error(op, {"3 x 3", "1 x 13"}, [] { torus(13, 2, 0); });
  expect_error(op, {"3 x 3", "2 x 7"}, [] { torus(14, 2, 0); });
  expect_error(op, {"3 x 3", "16 x 1"}, [] { torus(16, 2, 0, 16); });
  expect_error(op, {"divides the 16", "got 5"}, [] { torus(16, 2, 0, 5); });
  expect_error(op, {"divides the 16", "got -1"}, [] { torus(16, 2, 0, -1); });
  expect_error(op, {"0 to 8", "4 x 4", "got 10"}, [] { torus(16, 10, 0); });
  expect_error(op, {"k even", "got 3"}, [] { torus(16, 3, 0); });
  expect_error(op, {"p in [0, 1]"}, [] { torus(16, 2, -0.1); });
}

TEST(Strided, LooksAsDrawn) {
  EXPECT_EQ(pattern::strided(56, 56, kBlock, 3), from_picture({
                                                     "####..#",
                                                     "#####..",
                                                     "######.",
                                                     "#######",
                                                     ".######",
                                                     "..#####",
                                                     "#..####",
                                                 }));
  EXPECT_EQ(pattern::strided(56, 56, kBlock, 2, true), from_picture({
                                                           "#......",
                                                           "##.....",
                                                           "###....",
                                                           ".###...",
                                                           "#.###..",
                                                           ".#.###.",
                                                           "#.#.###",
                                                       }));
  EXPECT_EQ(pattern::strided(56, 56, kBlock, 100), pattern::full(56, 56, kBlock));
}

TEST(Fixed, LooksAsDrawn) {
  EXPECT_EQ(pattern::fixed(56, 56, kBlock, 3), from_picture({
                                                   "###..#.",
                                                   "###..#.",
                                                   "###..#.",
                                                   "..####.",
                                                   "..####.",
                                                   "..####.",
                                                   "..#..##",
                                               }));
  EXPECT_EQ(pattern::fixed(56, 56, kBlock, 4, 2, true), from_picture({
                                                            "#......",
                                                            "##.....",
                                                            "###....",
                                                            "####...",
                                                            "..###..",
                                                            "..####.",
                                                            "..#####",
                                                        }));
}

// The paper's definition: every output sees every input in two steps, through the two heads' union.
TEST(StridedAndFixed, ReachAllInTwoSteps) {
  for (const std::int64_t n : {9, 24, 50}) {
    for (const std::int64_t stride : {3, 5, 7}) {
      for (const BlockPattern& made :
           {pattern::strided(n * 8, n * 8, kBlock, stride), pattern::fixed(n * 8, n * 8, kBlock, stride)}) {
        for (std::int64_t r = 0; r < n - n % stride; ++r) {
          for (std::int64_t c = 0; c < n - n % stride; ++c) {
            bool joined = false;
            for (std::int64_t middle = 0; middle < n; ++middle)
              joined |= made.test(r, middle) && made.test(middle, c);
            ASSERT_TRUE(joined) << n << " by " << stride << ": " << r << ", " << c;
          }
        }
      }
    }
  }
}

TEST(StridedAndFixed, RefuseImpossibleNumbers) {
  expect_error("pattern.strided", {"stride >= 1", "got 0"}, [] { pattern::strided(64, 64, kBlock, 0); });
  expect_error("pattern.fixed", {"stride >= 1", "got -3"}, [] { pattern::fixed(64, 64, kBlock, -3); });
  expect_error("pattern.fixed", {"summary from 1", "got 0"}, [] { pattern::fixed(64, 64, kBlock, 4, 0); });
  expect_error("pattern.fixed", {"stride, 4", "got 5"}, [] { pattern::fixed(64, 64, kBlock, 4, 5); });
  EXPECT_EQ(pattern::strided(0, 64, kBlock, 2).count(), 0);
}

TEST(Butterfly, JoinsNumbersThatDifferInOneBit) {
  EXPECT_EQ(pattern::butterfly(64, 64, kBlock), from_picture({
                                                    "###.#...",
                                                    "##.#.#..",
                                                    "#.##..#.",
                                                    ".###...#",
                                                    "#...###.",
                                                    ".#..##.#",
                                                    "..#.#.##",
                                                    "...#.###",
                                                }));
  EXPECT_EQ(pattern::butterfly(64, 64, kBlock, 1), pattern::block_diagonal(64, 64, kBlock, 4));
  for (const std::int64_t factors : {1, 2, 5, 9}) {
    const BlockPattern made = pattern::butterfly(4096, 4096, kBlock, factors);
    EXPECT_EQ(row_counts(made), std::vector<std::int64_t>(512, factors + 1));
  }
}

TEST(Butterfly, StretchesFromThePowerOfTwoBelow) {
  // Six lines hold four nodes: 0 0 1 2 2 3 by their centres.
  EXPECT_EQ(pattern::butterfly(48, 48, kBlock, 1), from_picture({
                                                       "###...",
                                                       "###...",
                                                       "###...",
                                                       "...###",
                                                       "...###",
                                                       "...###",
                                                   }));
  EXPECT_EQ(pattern::butterfly(0, 64, kBlock).count(), 0);
  EXPECT_EQ(pattern::butterfly(8, 64, kBlock), pattern::full(8, 64, kBlock));
  for (const std::int64_t rows : {1, 3, 7, 20}) {
    for (const std::int64_t cols : {2, 5, 33}) {
      const PatternStats stats = pattern::butterfly(rows * 8, cols * 8, kBlock).stats();
      EXPECT_GE(stats.row_min, 1);
    }
  }
}

TEST(Butterfly, RefusesMoreFactorsThanBits) {
  expect_error("pattern.butterfly", {"0 to 3", "8 nodes", "got 4"},
               [] { pattern::butterfly(120, 64, kBlock, 4); });
  expect_error("pattern.butterfly", {"got -1"}, [] { pattern::butterfly(64, 64, kBlock, -1); });
}

}  // namespace
}  // namespace sparseloom
