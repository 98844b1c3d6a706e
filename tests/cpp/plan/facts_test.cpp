// What plans learn of a pattern.
#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "plan/evenness.h"
#include "sparseloom/sparseloom.h"

namespace sparseloom {
namespace {

Facts facts(std::vector<std::int32_t> crow, std::vector<std::int32_t> col) {
  return facts_of(BlockIndex(128, 128, {32, 32}, crow, col).view());
}

TEST(Facts, TellUnevenBlockRows) {
  const Facts mild = facts({0, 3, 4, 6, 8}, {0, 1, 2, 1, 0, 1, 2, 3});  // 3 where the mean is 2: may be
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

TEST(Facts, TheDigestSaysAllAndAnythingElseIsUnknown) {
  for (const Facts known : {Facts{true, false}, Facts{true, true}}) {
    EXPECT_EQ(Facts::of_digest(known.digest()), known);
    EXPECT_NE(known.digest(), kUnknownDigest);
  }
  EXPECT_EQ(Facts{}.digest(), kUnknownDigest);
  // A content hash, which programs exported before carry in the digest's place.
  for (const std::int64_t other : {kUnknownDigest, std::int64_t{2}, std::int64_t{0x5bbbc74d4a57de7b}})
    EXPECT_EQ(Facts::of_digest(other), Facts{});
}

// Equal layers with different blocks: one plan.
TEST(Facts, BalancedPatternsOfOneShapeShareThem) {
  std::set<std::int64_t> digests;
  for (std::uint64_t seed = 0; seed < 24; ++seed)
    digests.insert(facts_of(BlockIndex(pattern::balanced(768, 768, {32, 32}, 0.2, seed)).view()).digest());
  EXPECT_EQ(digests.size(), 1u);
}

}  // namespace
}  // namespace sparseloom
