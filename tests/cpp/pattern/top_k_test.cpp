#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "core/expect_error.h"
#include "core/rng.h"
#include "pattern/pictures.h"
#include "sparseloom/pattern.h"

namespace sparseloom {
namespace {

using test::expect_error;
using test::from_picture;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(TopK, KeepsTheHighest) {
  const std::vector<float> scores = {0.5f, -1, 3, 2, kInf, -kInf};
  EXPECT_EQ(pattern::top_k(16, 24, {8, 8}, scores, 0), from_picture({"...", "..."}));
  EXPECT_EQ(pattern::top_k(16, 24, {8, 8}, scores, 1), from_picture({"...", ".#."}));
  EXPECT_EQ(pattern::top_k(16, 24, {8, 8}, scores, 3), from_picture({"..#", "##."}));
  EXPECT_EQ(pattern::top_k(16, 24, {8, 8}, scores, 5), from_picture({"###", "##."}));
  EXPECT_EQ(pattern::top_k(16, 24, {8, 8}, scores, 6), pattern::full(16, 24, {8, 8}));
}

TEST(TopK, TiesGoToTheLowestIndex) {
  EXPECT_EQ(pattern::top_k(16, 24, {8, 8}, std::vector<float>(6, 1), 4), from_picture({"###", "#.."}));
  const std::vector<float> zeros = {-0.0f, 0.0f, -0.0f, 0.0f, 1, 0.0f};  // -0.0 is zero
  EXPECT_EQ(pattern::top_k(16, 24, {8, 8}, zeros, 3), from_picture({"##.", ".#."}));
}

TEST(TopK, AgreesWithAStableSort) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    core::Rng rng(seed);
    const auto grid_rows = static_cast<std::int64_t>(1 + rng.below(9)),
               grid_cols = static_cast<std::int64_t>(1 + rng.below(70));
    std::vector<float> scores(static_cast<std::size_t>(grid_rows * grid_cols));
    for (float& score : scores)
      score = static_cast<float>(rng.below(1 + rng.below(20)));  // few values, many ties
    std::vector<std::int64_t> order(scores.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](std::int64_t a, std::int64_t b) { return scores[a] > scores[b]; });
    const auto count = static_cast<std::int64_t>(rng.below(scores.size() + 1));
    BlockPattern expected(grid_rows * 8, grid_cols * 8, {8, 8});
    for (std::int64_t i = 0; i < count; ++i) expected.set(order[i] / grid_cols, order[i] % grid_cols);
    ASSERT_EQ(pattern::top_k(grid_rows * 8, grid_cols * 8, {8, 8}, scores, count), expected)
        << "seed " << seed;
  }
}

TEST(TopKByRow, GivesEveryRowItsShareAndTheRestToTheBest) {
  const std::vector<float> scores = {90, 80, 70, 60, 1, 4, 2, 3};  // a row of another scale
  EXPECT_EQ(pattern::top_k(16, 32, {8, 8}, scores, 4), from_picture({"####", "...."}));
  EXPECT_EQ(pattern::top_k_by_row(16, 32, {8, 8}, scores, 0), from_picture({"....", "...."}));
  EXPECT_EQ(pattern::top_k_by_row(16, 32, {8, 8}, scores, 1), from_picture({"#...", "...."}));
  EXPECT_EQ(pattern::top_k_by_row(16, 32, {8, 8}, scores, 4), from_picture({"##..", ".#.#"}));
  EXPECT_EQ(pattern::top_k_by_row(16, 32, {8, 8}, scores, 5), from_picture({"###.", ".#.#"}));
  EXPECT_EQ(pattern::top_k_by_row(16, 32, {8, 8}, scores, 8), pattern::full(16, 32, {8, 8}));
  EXPECT_EQ(pattern::top_k_by_row(0, 32, {8, 8}, {}, 0).count(), 0);
}

TEST(TopKByRow, AgreesWithAStableSortOfEveryRow) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    core::Rng rng(seed);
    const auto grid_rows = static_cast<std::int64_t>(1 + rng.below(9)),
               grid_cols = static_cast<std::int64_t>(1 + rng.below(70));
    std::vector<float> scores(static_cast<std::size_t>(grid_rows * grid_cols));
    for (float& score : scores) score = static_cast<float>(rng.below(1 + rng.below(20)));
    const auto count = static_cast<std::int64_t>(rng.below(scores.size() + 1));
    const auto better = [&](std::int64_t a, std::int64_t b) { return scores[a] > scores[b]; };
    BlockPattern expected(grid_rows * 8, grid_cols * 8, {8, 8});
    std::vector<std::int64_t> next;
    for (std::int64_t r = 0; r < grid_rows; ++r) {
      std::vector<std::int64_t> order(static_cast<std::size_t>(grid_cols));
      std::iota(order.begin(), order.end(), r * grid_cols);
      std::stable_sort(order.begin(), order.end(), better);
      for (std::int64_t i = 0; i < count / grid_rows; ++i) expected.set(r, order[i] % grid_cols);
      if (count / grid_rows < grid_cols) next.push_back(order[count / grid_rows]);
    }
    std::stable_sort(next.begin(), next.end(), better);
    for (std::int64_t i = 0; i < count % grid_rows; ++i)
      expected.set(next[i] / grid_cols, next[i] % grid_cols);
    ASSERT_EQ(pattern::top_k_by_row(grid_rows * 8, grid_cols * 8, {8, 8}, scores, count), expected)
        << "seed " << seed;
    ASSERT_EQ(expected.count(), count);
  }
}

TEST(TopK, RefusesBadArguments) {
  const char* op = "pattern.top_k";
  const std::vector<float> scores = {1, 2, 3, 4, kNan, 6};
  expect_error(op, {"NaN at scores[4], block row 1, block column 1"}, [&] {
    pattern::top_k(16, 24, {8, 8}, scores, 2);
  });
  expect_error(op, {"0 <= count <= 6", "got 7"}, [&] { pattern::top_k(16, 24, {8, 8}, scores, 7); });
  expect_error(op, {"got -1"}, [&] { pattern::top_k(16, 24, {8, 8}, scores, -1); });
  expect_error(op, {"8 scores", "[2, 4]", "got 6"}, [&] { pattern::top_k(16, 32, {8, 8}, scores, 2); });
  expect_error("pattern.top_k_by_row", {"0 <= count <= 6", "got 7"}, [&] {
    pattern::top_k_by_row(16, 24, {8, 8}, scores, 7);
  });
}

}  // namespace
}  // namespace sparseloom
