// How a call is cut: every unit to exactly one task, and skewed rows evenly.
#include "kernels/cpu/share.h"

#include <gtest/gtest.h>

#include <vector>

namespace sparseloom::kernels::cpu {
namespace {

// Runs the split over `panels` panels of `widths` vectors; returns each task's cost, checking that the units tile each panel.
std::vector<double> split(const std::vector<std::int64_t>& prefix, std::int64_t subs, const std::vector<std::int64_t>& widths,
                          std::int64_t tasks) {
  const std::int64_t blocks = static_cast<std::int64_t>(prefix.size()) - 1;
  std::int64_t vectors = 0;
  for (const std::int64_t w : widths) vectors += w;
  std::vector<double> cost(static_cast<std::size_t>(tasks));
  std::int64_t before = 0;
  for (const std::int64_t width : widths) {
    std::int64_t next = 0;
    for (std::int64_t task = 0; task < tasks; ++task) {
      const Range units = units_in_share(prefix.data(), blocks, subs, before, width, share(prefix.back() * vectors, task, tasks));
      if (units.begin == units.end) continue;
      EXPECT_EQ(units.begin, next);
      next = units.end;
      for (std::int64_t u = units.begin; u < units.end; ++u)
        cost[static_cast<std::size_t>(task)] +=
            static_cast<double>((prefix[u / subs + 1] - prefix[u / subs]) * width) / static_cast<double>(subs);
    }
    EXPECT_EQ(next, blocks * subs);
    before += width;
  }
  return cost;
}

TEST(Share, CutsAreEvenAndCover) {
  for (const std::int64_t total : {std::int64_t{0}, std::int64_t{1}, std::int64_t{10}, std::int64_t{1} << 60})
    for (const std::int64_t tasks : {1, 3, 64}) {
      std::int64_t next = 0;
      for (std::int64_t t = 0; t < tasks; ++t) {
        const Range r = share(total, t, tasks);
        EXPECT_EQ(r.begin, next);
        EXPECT_NEAR(static_cast<double>(r.end - r.begin), static_cast<double>(total) / static_cast<double>(tasks), 1.0);
        next = r.end;
      }
      EXPECT_EQ(next, total);
    }
}

TEST(Share, SkewedRowsBalance) {
  // One row holds half of all blocks; 4 subs per row, 3 panels.
  std::vector<std::int64_t> prefix = {0};
  for (int r = 0; r < 64; ++r) prefix.push_back(prefix.back() + (r == 10 ? 6300 : 100));
  for (const std::int64_t tasks : {2, 3, 7}) {
    const std::vector<double> cost = split(prefix, 4, {3, 3, 2}, tasks);
    const double mean = static_cast<double>(prefix.back()) * 8 / static_cast<double>(tasks);
    const double unit = 6300.0 / 4 * 3;  // the largest piece that is not cut
    for (const double c : cost) EXPECT_LE(c, mean + unit);
  }
}

TEST(Share, EvenRowsBalanceWithinOneUnit) {
  std::vector<std::int64_t> prefix = {0};
  for (int r = 0; r < 128; ++r) prefix.push_back(prefix.back() + 400 + r % 3);
  for (const std::int64_t tasks : {2, 5, 16}) {
    const std::vector<double> cost = split(prefix, 4, std::vector<std::int64_t>(22, 3), tasks);
    const double mean = static_cast<double>(prefix.back()) * 66 / static_cast<double>(tasks);
    for (const double c : cost) EXPECT_NEAR(c, mean, 2 * 402.0 / 4 * 3);
  }
}

TEST(Share, RowsOfNoCostAreStillCovered) {
  split({0, 0, 0, 5, 5, 9, 9}, 2, {3, 1}, 3);
  split({0, 1}, 16, {3}, 7);
}

}  // namespace
}  // namespace sparseloom::kernels::cpu
