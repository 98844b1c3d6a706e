// cut_lines: equal parts where they exist, at most two lines apart elsewhere, no empty part.
#include "pattern/cut.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "core/expect_error.h"
#include "core/rng.h"

namespace sparseloom::pattern {
namespace {

using Counts = std::vector<std::int64_t>;

Counts sums(const Counts& stored, const Counts& borders) {
  Counts found;
  for (std::size_t part = 0; part + 1 < borders.size(); ++part)
    found.push_back(
        std::accumulate(stored.begin() + borders[part], stored.begin() + borders[part + 1], std::int64_t{0}));
  return found;
}

TEST(CutLines, GivesEqualPartsWhereTheyExist) {
  EXPECT_EQ(cut_lines(Counts{3, 3, 3, 3}, 2), (Counts{0, 2, 4}));
  EXPECT_EQ(cut_lines(Counts{6, 1, 1, 1, 1, 1, 1}, 2), (Counts{0, 1, 7}));
  EXPECT_EQ(cut_lines(Counts{1, 2, 3, 1, 5, 4, 1, 1}, 3), (Counts{0, 3, 5, 8}));
  EXPECT_EQ(cut_lines(Counts{5, 7}, 1), (Counts{0, 2}));
}

TEST(CutLines, CutsEvenlyWhatStoresNothing) {
  EXPECT_EQ(cut_lines(Counts(8, 0), 4), (Counts{0, 2, 4, 6, 8}));
  EXPECT_EQ(cut_lines(Counts{4, 0, 0, 0, 0, 4}, 2), (Counts{0, 3, 6}));
}

TEST(CutLines, LeavesNoPartWithoutALine) {
  EXPECT_EQ(cut_lines(Counts{100, 0, 0, 0}, 4), (Counts{0, 1, 2, 3, 4}));
  EXPECT_EQ(cut_lines(Counts{0, 0, 0, 100}, 3), (Counts{0, 1, 2, 4}));
  EXPECT_EQ(cut_lines(Counts{0, 100, 0, 0}, 3), (Counts{0, 1, 2, 4}));
}

TEST(CutLines, PartsDifferByAtMostTwoLines) {
  core::Rng rng(7);
  for (const std::int64_t parts : {2, 3, 4, 8}) {
    Counts stored(64);
    for (auto& blocks : stored) blocks = static_cast<std::int64_t>(rng.below(20));
    const Counts borders = cut_lines(stored, parts), found = sums(stored, borders);
    EXPECT_TRUE(std::is_sorted(borders.begin(), borders.end()));
    const auto [least, most] = std::minmax_element(found.begin(), found.end());
    EXPECT_LE(*most - *least, 2 * *std::max_element(stored.begin(), stored.end()));
  }
}

TEST(CutLines, CountsAboveInt32DoNotOverflow) {
  const Counts stored(6, std::numeric_limits<std::int32_t>::max());
  EXPECT_EQ(cut_lines(stored, 3), (Counts{0, 2, 4, 6}));
}

TEST(CutLines, RefusesWhatCannotBeCut) {
  const char* op = "pattern.cut_lines";
  test::expect_error(op, {"1 to 2 parts"}, [] { cut_lines(Counts{1, 1}, 3); });
  test::expect_error(op, {"1 to 2 parts"}, [] { cut_lines(Counts{1, 1}, 0); });
  test::expect_error(op, {"counts of blocks"}, [] { cut_lines(Counts{1, -1}, 1); });
}

}  // namespace
}  // namespace sparseloom::pattern
