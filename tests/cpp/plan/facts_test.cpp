// What plans learn of a pattern.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <tuple>
#include <vector>

#include "plan/evenness.h"
#include "sparseloom/sparseloom.h"

namespace sparseloom {
namespace {

Facts facts(std::vector<std::int32_t> crow, std::vector<std::int32_t> col) {
  return facts_of(BlockIndex(128, 128, {32, 32}, crow, col).view());
}

TEST(Facts, TellUnevenBlockRows) {
  const Facts mild = facts({0, 2, 4, 6, 8}, {0, 1, 1, 2, 0, 1, 2, 3});
  EXPECT_TRUE(mild.known);
  EXPECT_FALSE(mild.uneven_rows);
  EXPECT_TRUE(facts({0, 4, 5, 6, 7}, {0, 1, 2, 3, 0, 0, 0}).uneven_rows);
  EXPECT_FALSE(facts({0, 1, 2, 3, 4}, {0, 0, 0, 0}).uneven_rows);  // one column has all: not asked
  const Facts empty = facts({0, 0, 0, 0, 0}, {});
  EXPECT_TRUE(empty.known);
  EXPECT_FALSE(empty.uneven_rows);
}

TEST(Facts, OfGroupsCompareWithTheMeanOfSuchGroups) {
  const std::vector<std::int64_t> lengths = {3, 3, 1, 1, 4};
  EXPECT_FALSE(plan::uneven(lengths, 2, 1.25));  // 6 where two rows have 4.8 in the mean
  EXPECT_TRUE(plan::uneven(lengths, 2, 1.24));
  EXPECT_FALSE(plan::uneven(lengths, 8, 1.01));  // all of them
  EXPECT_FALSE(plan::uneven({}, 1, 1.5));
}

TEST(Facts, ClassTheLongestAgainstChanceAndTheMean) {
  const Facts even = facts({0, 2, 4, 6, 8}, {0, 1, 2, 3, 0, 1, 2, 3});
  EXPECT_EQ(even.longest_row, Longest::even);
  EXPECT_EQ(even.longest_column, Longest::even);
  const auto cross = [](std::int32_t side) {  // a full block row and a full block column
    std::vector<std::int32_t> crow(static_cast<std::size_t>(side) + 1), col;
    for (std::int32_t r = 0; r < side; ++r) {
      for (std::int32_t c = 0; c < (r == 0 ? side : 1); ++c) col.push_back(c);
      crow[static_cast<std::size_t>(r) + 1] = static_cast<std::int32_t>(col.size());
    }
    return facts_of(BlockIndex(side * 16, side * 16, {16, 16}, crow, col).view());
  };
  EXPECT_EQ(cross(16).longest_row, Longest::nine);  // 16 where the mean is 31 / 16
  EXPECT_EQ(cross(16).longest_column, Longest::nine);
  EXPECT_EQ(cross(64).longest_row, Longest::more);
  EXPECT_TRUE(cross(64).uneven_rows);
}

TEST(Facts, TellBandsFromChance) {
  std::vector<std::int32_t> crow{0}, col;
  for (std::int32_t r = 0; r < 32; ++r) {
    for (std::int32_t c = std::max(0, r - 2); c < std::min(32, r + 3); ++c) col.push_back(c);
    crow.push_back(static_cast<std::int32_t>(col.size()));
  }
  EXPECT_TRUE(facts_of(BlockIndex(512, 512, {16, 16}, crow, col).view()).banded);
  EXPECT_FALSE(facts_of(BlockIndex(pattern::balanced(512, 512, {16, 16}, 0.15, 1)).view()).banded);
}

TEST(Facts, TheDigestSaysAllAndAnythingElseIsUnknown) {
  std::set<std::int64_t> digests{kUnknownDigest};
  for (int row = 0; row < 7; ++row)
    for (int column = 0; column < 7; ++column)
      for (const bool flag : {false, true})
        for (const bool banded : {false, true}) {
          const Facts known{true, flag, static_cast<Longest>(row), static_cast<Longest>(column), banded};
          EXPECT_EQ(Facts::of_digest(known.digest()), known);
          EXPECT_TRUE(digests.insert(known.digest()).second);
          Facts some = known;
          some.moving = true;
          EXPECT_EQ(Facts::of_digest(some.digest()), some);
          EXPECT_TRUE(digests.insert(some.digest()).second);
        }
  EXPECT_EQ(*digests.rbegin(), 197);
  EXPECT_EQ(*digests.begin(), -198);
  EXPECT_EQ(Facts{}.digest(), kUnknownDigest);
  Facts moving;
  moving.moving = true;
  EXPECT_EQ(moving.digest(), kMovingDigest);
  EXPECT_EQ(Facts::of_digest(kMovingDigest), moving);
  EXPECT_FALSE(digests.contains(kMovingDigest));
  for (const std::int64_t other : {kUnknownDigest, std::int64_t{0}, std::int64_t{1}, std::int64_t{198},
                                   std::int64_t{-199}, std::int64_t{0x5bbbc74d4a57de7b}})
    EXPECT_EQ(Facts::of_digest(other), Facts{});
}

// Equal layers with different blocks: one plan.
TEST(Facts, BalancedPatternsOfOneShapeShareThem) {
  std::set<std::int64_t> digests;
  for (std::uint64_t seed = 0; seed < 24; ++seed)
    digests.insert(facts_of(BlockIndex(pattern::balanced(768, 768, {32, 32}, 0.2, seed)).view()).digest());
  EXPECT_EQ(digests.size(), 1u);
}

// Their longest rows lie on either side of kUnevenRow: .05 to .95 of the seeds were uneven.
TEST(Facts, RandomPatternsOfOneShapeAndDensityShareThem) {
  for (const auto& [rows, cols, density] :
       {std::tuple{1024, 4096, 0.1}, {768, 3072, 0.25}, {384, 1536, 0.1}, {2048, 512, 0.5}}) {
    std::set<std::int64_t> digests;
    for (std::uint64_t seed = 0; seed < 24; ++seed)
      digests.insert(
          facts_of(BlockIndex(pattern::random(rows, cols, {32, 32}, density, seed)).view()).digest());
    EXPECT_EQ(digests.size(), 1u) << rows << " x " << cols << " " << density;
  }
}

}  // namespace
}  // namespace sparseloom
