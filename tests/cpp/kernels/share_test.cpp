// How a call is cut: every unit to exactly one part, and skewed rows evenly.
#include "kernels/shared/cpu/share.h"

#include <gtest/gtest.h>

#include <vector>

namespace sparseloom::kernels::cpu {
namespace {

// Each part's cost, checking that the parts tile the units and begin at multiples.
std::vector<double> split(const std::vector<std::int64_t>& prefix, std::int64_t subs, std::int64_t parts,
                          std::int64_t multiple = 1) {
  const std::int64_t blocks = static_cast<std::int64_t>(prefix.size()) - 1;
  std::vector<double> cost;
  std::int64_t next = 0;
  for (std::int64_t part = 0; part < parts; ++part) {
    const Range units = units_of_part(prefix.data(), blocks, subs, part, parts, multiple);
    EXPECT_EQ(units.begin, next);
    EXPECT_TRUE(units.end % multiple == 0 || units.end == blocks * subs);
    next = units.end;
    cost.push_back(0);
    for (std::int64_t u = units.begin; u < units.end; ++u)
      cost.back() += static_cast<double>(prefix[u / subs + 1] - prefix[u / subs]) / static_cast<double>(subs);
  }
  EXPECT_EQ(next, blocks * subs);
  return cost;
}

TEST(Share, CutsAreEvenAndCover) {
  for (const std::int64_t total : {std::int64_t{0}, std::int64_t{1}, std::int64_t{10}, std::int64_t{1} << 60})
    for (const std::int64_t tasks : {1, 3, 64}) {
      std::int64_t next = 0;
      for (std::int64_t t = 0; t < tasks; ++t) {
        const Range r = share(total, t, tasks);
        EXPECT_EQ(r.begin, next);
        EXPECT_NEAR(static_cast<double>(r.end - r.begin),
                    static_cast<double>(total) / static_cast<double>(tasks), 1.0);
        next = r.end;
      }
      EXPECT_EQ(next, total);
    }
}

TEST(Share, SkewedRowsBalance) {
  // One row holds half of all blocks; 4 subs per row.
  std::vector<std::int64_t> prefix = {0};
  for (int r = 0; r < 64; ++r) prefix.push_back(prefix.back() + (r == 10 ? 6300 : 100));
  for (const std::int64_t parts : {2, 3, 7}) {
    const double mean = static_cast<double>(prefix.back()) / static_cast<double>(parts),
                 unit = 6300.0 / 4;  // which is not cut
    for (const double c : split(prefix, 4, parts)) EXPECT_LE(c, mean + unit);
  }
}

TEST(Share, EvenRowsBalanceWithinOneMultiple) {
  std::vector<std::int64_t> prefix = {0};
  for (int r = 0; r < 128; ++r) prefix.push_back(prefix.back() + 400 + r % 3);
  for (const std::int64_t parts : {2, 5, 16})
    for (const std::int64_t multiple : {1, 3, 4}) {
      const double mean = static_cast<double>(prefix.back()) / static_cast<double>(parts);
      for (const double c : split(prefix, 4, parts, multiple))
        EXPECT_NEAR(c, mean, (multiple + 1) * 402.0 / 4);
    }
}

TEST(Share, RowsOfNoCostAreStillCovered) {
  split({0, 0, 0, 5, 5, 9, 9}, 2, 3);
  split({0, 0, 0, 5, 5, 9, 9}, 2, 3, 4);
  split({0, 1}, 16, 7);
}

}  // namespace
}  // namespace sparseloom::kernels::cpu
