#include "core/rng.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <set>

namespace sparseloom::core {
namespace {

static_assert(Rng(0).next() == 11091344671253066420u,
              "seeds must be usable at compile time, with the same result");

// The published vector of xoshiro256** seeded by SplitMix64 from 0: what makes patterns the same on every
// machine.
TEST(Rng, MatchesThePublishedSequence) {
  Rng rng(0);
  for (const std::uint64_t expected :
       {11091344671253066420u, 13793997310169335082u, 1900383378846508768u, 7684712102626143532u}) {
    EXPECT_EQ(rng.next(), expected);
  }
}

TEST(Rng, BoundedDrawsKeepTheirValues) {
  Rng rng(42);
  for (const std::uint64_t expected : {0x15780b2e0c2ec716u, 0x6104d9866d113a7eu, 0xae17533239e499a1u})
    EXPECT_EQ(rng.next(), expected);
  for (const std::uint64_t expected : {9, 9, 7, 7, 8, 7, 5, 6, 2, 8, 3, 7})
    EXPECT_EQ(rng.below(10), expected);
  // A bound of 3/4 of 2^64 rejects a quarter of all draws.
  for (const std::uint64_t expected : {12143960580835564027u, 8532931747996087215u, 9788863455333340121u}) {
    EXPECT_EQ(rng.below(std::uint64_t{3} << 62), expected);
  }
  EXPECT_EQ(rng.below(1), 0u);
}

TEST(Rng, BoundedDrawsAreUniform) {
  constexpr int kBound = 7, kDraws = 70000;
  std::array<int, kBound> seen{};
  Rng rng(5);
  for (int i = 0; i < kDraws; ++i) ++seen[rng.below(kBound)];
  double chi_squared = 0;
  for (const int count : seen) chi_squared += std::pow(count - kDraws / kBound, 2) / (kDraws / kBound);
  EXPECT_LT(chi_squared, 22.5);  // 6 degrees of freedom: 99.9 %
}

TEST(Rng, SplitsIntoStreamsThatDoNotDependOnDraws) {
  Rng rng(7);
  const std::array<std::uint64_t, 3> expected = {0xb0e6aef35d57abf1, 0x944d0daac3837e76, 0x5d34d747cb52693d};
  for (std::uint64_t stream = 0; stream < expected.size(); ++stream) {
    EXPECT_EQ(rng.split(stream).next(), expected[stream]);
    rng.next();
  }
  std::set<std::uint64_t> firsts;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    for (std::uint64_t stream = 0; stream < 100; ++stream) firsts.insert(Rng(seed).split(stream).next());
  }
  EXPECT_EQ(firsts.size(), 10000u);
}

TEST(Rng, UniformCoversTheUnitInterval) {
  Rng rng(11);
  double low = 1, high = 0, sum = 0;
  constexpr int kDraws = 10000;
  for (int i = 0; i < kDraws; ++i) {
    const double x = rng.uniform();
    ASSERT_TRUE(x >= 0 && x < 1);
    low = std::min(low, x);
    high = std::max(high, x);
    sum += x;
  }
  EXPECT_LT(low, 0.001);
  EXPECT_GT(high, 0.999);
  EXPECT_NEAR(sum / kDraws, 0.5, 4 * 0.2887 / 100);  // four standard errors
}

}  // namespace
}  // namespace sparseloom::core
