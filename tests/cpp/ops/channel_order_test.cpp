// The search for an order of columns: against a search that forms every sum anew, and its edges.
#include "sparseloom/channel_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <thread>
#include <vector>

#include "core/rng.h"
#include "sparseloom/error.h"

namespace sparseloom {
namespace {

std::vector<float> uniform(std::int64_t rows, std::int64_t cols, std::uint64_t seed) {
  core::Rng rng(seed);
  std::vector<float> w(static_cast<std::size_t>(rows * cols));
  for (float& each : w) each = static_cast<float>(rng.below(1000001)) * 2e-6f - 1.0f;
  return w;
}

/// What 2:4 keeps of w in that order, group by group.
double kept(const std::vector<float>& w, std::int64_t rows, std::int64_t cols,
            const std::vector<std::int64_t>& order) {
  double sum = 0;
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t begin = 0; begin < cols; begin += 4) {
      std::vector<double> group;
      for (std::int64_t i = begin; i < std::min(begin + 4, cols); ++i)
        group.push_back(
            std::fabs(w[static_cast<std::size_t>(row * cols + order[static_cast<std::size_t>(i)])]));
      std::sort(group.rbegin(), group.rend());
      for (std::size_t i = 0; i < std::min<std::size_t>(2, group.size()); ++i) sum += group[i];
    }
  return sum;
}

std::vector<std::int64_t> found(const std::vector<float>& w, std::int64_t rows, std::int64_t cols,
                                std::int64_t rounds = 0, const Executor& executor = {}) {
  return semi24_channel_order(view(w.data(), rows, cols), rounds, executor);
}

std::vector<std::int64_t> identity(std::int64_t cols) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(cols));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  return order;
}

TEST(ChannelOrder, IsAPermutationThatNoSwapImproves) {
  for (const std::int64_t rows : {1, 5, 16, 37, 300})
    for (const std::int64_t cols : {8, 12, 22, 32}) {
      const std::vector<float> w = uniform(rows, cols, static_cast<std::uint64_t>(rows * 100 + cols));
      std::vector<std::int64_t> order = found(w, rows, cols);
      std::vector<std::int64_t> sorted = order;
      std::sort(sorted.begin(), sorted.end());
      ASSERT_EQ(sorted, identity(cols));
      for (std::int64_t i = cols / 4 * 4; i < cols; ++i) EXPECT_EQ(order[static_cast<std::size_t>(i)], i);
      const double best = kept(w, rows, cols, order);
      EXPECT_GE(best, kept(w, rows, cols, identity(cols)));
      for (std::size_t a = 0; a < static_cast<std::size_t>(cols / 4 * 4); ++a)
        for (std::size_t b = a + 1; b < static_cast<std::size_t>(cols / 4 * 4); ++b) {
          std::swap(order[a], order[b]);
          EXPECT_LE(kept(w, rows, cols, order), best + 2e-4) << rows << " x " << cols;
          std::swap(order[a], order[b]);
        }
    }
}

TEST(ChannelOrder, FindsTheOrderThatKeepsEverything) {
  // Columns of four groups, of which the same two rows' halves are empty, dealt out in turn.
  constexpr std::int64_t kRows = 8, kCols = 16;
  std::vector<float> w(static_cast<std::size_t>(kRows * kCols));
  for (std::int64_t row = 0; row < kRows; ++row)
    for (std::int64_t col = 0; col < kCols; ++col)
      w[static_cast<std::size_t>(row * kCols + col)] = (col < 8) == (row < 4) ? 1.0f : 0.0f;
  const double all = std::accumulate(w.begin(), w.end(), 0.0);
  EXPECT_DOUBLE_EQ(kept(w, kRows, kCols, identity(kCols)), all / 2);
  EXPECT_DOUBLE_EQ(kept(w, kRows, kCols, found(w, kRows, kCols)), all);
}

TEST(ChannelOrder, RoundsAddUp) {
  const std::vector<float> w = uniform(64, 64, 7);
  double before = kept(w, 64, 64, identity(64));
  for (const std::int64_t rounds : {1, 2, 4}) {
    const double after = kept(w, 64, 64, found(w, 64, 64, rounds));
    EXPECT_GT(after, before);
    before = after;
  }
  EXPECT_GE(kept(w, 64, 64, found(w, 64, 64)), before);
}

TEST(ChannelOrder, DoesNotDependOnThreadsOrScale) {
  std::vector<float> w = uniform(70, 96, 3);
  const std::vector<std::int64_t> alone = found(w, 70, 96);
  Executor threads;
  threads.num_threads = 3;
  threads.parallel_for = [](void*, std::int64_t count, RangeBody body) {
    std::vector<std::thread> workers;
    for (std::int64_t i = 0; i < 3; ++i)
      workers.emplace_back([=] { body(count * i / 3, count * (i + 1) / 3); });
    for (std::thread& worker : workers) worker.join();
  };
  EXPECT_EQ(found(w, 70, 96, 0, threads), alone);
  for (float& each : w) each *= 0x1p-20f;
  EXPECT_EQ(found(w, 70, 96), alone);
}

TEST(ChannelOrder, TakesSmallAndEmptyMatrices) {
  for (const auto& [rows, cols] :
       std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 8}, {3, 0}, {3, 4}, {3, 7}})
    EXPECT_EQ(found(uniform(rows, cols, 1), rows, cols), identity(cols));
  EXPECT_EQ(found(std::vector<float>(64), 4, 16), identity(16));
}

TEST(ChannelOrder, RefusesWhatItCannotCompare) {
  std::vector<float> w = uniform(4, 8, 1);
  EXPECT_THROW(found(w, 4, 8, -1), Error);
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    w[9] = bad;
    EXPECT_THROW(found(w, 4, 8), Error);
  }
}

}  // namespace
}  // namespace sparseloom
