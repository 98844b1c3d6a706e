// The three seeded generators: exact totals and sums over a sweep, fixed results, and that they draw fairly.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <ctime>
#include <limits>
#include <map>
#include <set>
#include <string>

#include "core/expect_error.h"
#include "pattern/pictures.h"
#include "sparseloom/pattern.h"

namespace sparseloom {
namespace {

using test::expect_error;
using test::from_picture;
using test::row_counts;
using Generator = BlockPattern (*)(std::int64_t, std::int64_t, BlockShape, double, std::uint64_t);

void expect_even(const std::vector<std::int64_t>& counts, std::int64_t total) {
  if (counts.empty()) return;
  const auto parts = static_cast<std::int64_t>(counts.size());
  for (const std::int64_t count : counts) {
    ASSERT_TRUE(count == total / parts || count == (total + parts - 1) / parts)
        << count << " of " << total << " in " << parts;
  }
}

TEST(RandomPatterns, KeepTheirPromisesOverASweep) {
  for (const auto& [grid_rows, grid_cols] : std::initializer_list<std::pair<int, int>>{{1, 1},
                                                                                       {1, 70},
                                                                                       {70, 1},
                                                                                       {2, 2},
                                                                                       {3, 5},
                                                                                       {8, 8},
                                                                                       {13, 64},
                                                                                       {64, 13},
                                                                                       {31, 33},
                                                                                       {5, 129},
                                                                                       {0, 4},
                                                                                       {4, 0},
                                                                                       {0, 0}}) {
    for (const BlockShape block : {BlockShape{8, 8}, {16, 64}, {128, 32}}) {
      const std::int64_t rows = std::max(0, grid_rows * block.rows - 3),
                         cols = std::max(0, grid_cols * block.cols - 5);
      for (const double density : {0.0, 1e-9, 0.01, 0.1, 0.25, 1.0 / 3, 0.5, 0.77, 0.9, 0.999, 1.0}) {
        const std::int64_t total = std::llround(density * grid_rows * grid_cols);
        for (const std::uint64_t seed : {0ull, 1ull, 0xffffffffffffffffull}) {
          SCOPED_TRACE(testing::Message()
                       << grid_rows << " x " << grid_cols << " at " << density << ", seed " << seed);
          const BlockPattern random = pattern::random(rows, cols, block, density, seed);
          const BlockPattern balanced = pattern::balanced(rows, cols, block, density, seed);
          const BlockPattern biregular = pattern::biregular(rows, cols, block, density, seed);
          ASSERT_EQ(random.count(), total);
          ASSERT_EQ(balanced.count(), total);
          ASSERT_EQ(biregular.count(), total);
          expect_even(row_counts(balanced), total);
          expect_even(row_counts(biregular), total);
          expect_even(row_counts(biregular.transposed()), total);
        }
      }
    }
  }
}

// Drawn by a second implementation, in another language: a change of any of these breaks every seed in users'
// hands.
TEST(RandomPatterns, AreTheSameOnEveryMachine) {
  const double density = 21.0 / 60;
  EXPECT_EQ(
      pattern::random(48, 80, {8, 8}, density, 2024),
      from_picture({"..##..#...", "###.....##", "...#..#...", "..#.#.###.", ".#...####.", ".....#...."}));
  EXPECT_EQ(
      pattern::balanced(48, 80, {8, 8}, density, 2024),
      from_picture({".###..#...", ".#....#..#", "...#..#.#.", "...#..###.", "#.#..#....", ".#.#..#.#."}));
  EXPECT_EQ(
      pattern::biregular(48, 80, {8, 8}, density, 2024),
      from_picture({".#..##...#", "#.....##..", ".#.#....#.", "#.##....#.", "..##..#...", "....##.#.#"}));
  EXPECT_EQ(pattern::biregular(40, 56, {8, 8}, 26.0 / 35, 9),
            from_picture({"#.###.#", "####.##", ".#####.", "##..###", "#.###.#"}));
}

TEST(RandomPatterns, DependOnTheSeedAlone) {
  for (const Generator generate : {pattern::random, pattern::balanced, pattern::biregular}) {
    std::set<std::string> pictures;
    for (std::uint64_t seed = 0; seed < 50; ++seed) {
      const BlockPattern pattern = generate(128, 128, {8, 8}, 0.3, seed);
      EXPECT_EQ(pattern, generate(128, 128, {8, 8}, 0.3, seed));
      pictures.insert(pattern.ascii());
      // The grid decides, not the features: a block twice as wide on a matrix twice as wide is the same draw.
      EXPECT_EQ(pattern.ascii(), generate(128, 256, {8, 16}, 0.3, seed).ascii());
    }
    EXPECT_EQ(pictures.size(), 50u);
  }
}

/// Chi-squared of the patterns that `seeds` seeds give against all of the `expected` ones being equally
/// likely.
double chi_squared_of(Generator generate, int grid_rows, int grid_cols, int total, std::size_t expected,
                      int seeds) {
  std::map<std::string, int> seen;
  for (int seed = 0; seed < seeds; ++seed) {
    ++seen[generate(grid_rows * 8, grid_cols * 8, {8, 8},
                    static_cast<double>(total) / (grid_rows * grid_cols), seed)
               .ascii()];
  }
  EXPECT_EQ(seen.size(), expected);
  const double mean = static_cast<double>(seeds) / static_cast<double>(expected);
  double sum = 0;
  for (const auto& [picture, count] : seen) sum += (count - mean) * (count - mean) / mean;
  return sum;
}

// Every pattern that keeps the promise must be as likely: their numbers are combinatorics, the bounds
// chi-squared's 99.9 % points.
TEST(RandomPatterns, DrawFairly) {
  EXPECT_LT(chi_squared_of(pattern::random, 2, 4, 3, 56, 11200), 93.2);   // C(8, 3), 55 degrees of freedom
  EXPECT_LT(chi_squared_of(pattern::balanced, 2, 4, 3, 48, 9600), 82.7);  // 2 C(4, 2) C(4, 1)
  EXPECT_LT(chi_squared_of(pattern::biregular, 4, 4, 8, 90, 18000),
            135.0);                                                       // 4x4 0-1 matrices with all sums 2
  EXPECT_LT(chi_squared_of(pattern::biregular, 3, 3, 6, 6, 6000), 20.5);  // complements of the permutations
  EXPECT_LT(chi_squared_of(pattern::biregular, 2, 4, 6, 12, 2400),
            31.3);  // absent: one in each row, in different columns
}

TEST(RandomPatterns, BiregularIsFastOnALargeGrid) {
  const std::clock_t start = std::clock();  // of this process: other jobs of the machine do not count
  const BlockPattern pattern = pattern::biregular(32768, 32768, {32, 32}, 0.5, 3);
  const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  EXPECT_EQ(pattern.count(), 1024 * 512);
  expect_even(row_counts(pattern), pattern.count());
  expect_even(row_counts(pattern.transposed()), pattern.count());
#if defined(__OPTIMIZE__) && !defined(__SANITIZE_ADDRESS__)
  EXPECT_LT(seconds, 1.0);
#else
  EXPECT_LT(seconds, 20.0);
#endif
  // Well mixed: two rows of a bi-regular pattern share 1024 * 0.5^2 = 256 columns, give or take 16
  // (hypergeometric, one sigma 8); the start, dealt in turn, shares none or all.
  std::int64_t shared = 0;
  for (std::int64_t c = 0; c < pattern.block_cols(); ++c) shared += pattern.test(0, c) && pattern.test(1, c);
  EXPECT_NEAR(static_cast<double>(shared), 256, 48);
}

TEST(RandomPatterns, RefuseBadArguments) {
  const auto check = [](Generator generate, const char* op) {
    constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
    expect_error(op, {"density in [0, 1]", "nan"}, [&] { generate(64, 64, {8, 8}, kNan, 0); });
    expect_error(op, {"density in [0, 1]", "-0.1"}, [&] { generate(64, 64, {8, 8}, -0.1, 0); });
    expect_error(op, {"density in [0, 1]", "25.0"}, [&] { generate(64, 64, {8, 8}, 25, 0); });
    expect_error(op, {"[-64, 64]"}, [&] { generate(-64, 64, {8, 8}, 0.5, 0); });
    expect_error(op, {"got 8x12"}, [&] { generate(64, 64, {8, 12}, 0.5, 0); });
    expect_error(op, {"2^60"}, [&] {
      generate(std::int64_t{1} << 37, std::int64_t{1} << 37, {128, 128}, 0.5, 0);
    });
  };
  check(pattern::random, "pattern.random");
  check(pattern::balanced, "pattern.balanced");
  check(pattern::biregular, "pattern.biregular");
}

}  // namespace
}  // namespace sparseloom
