// Indices from outside: a table of hostile ones with the message each must give, then mutations of good ones.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "core/expect_error.h"
#include "core/rng.h"
#include "sparseloom/layout.h"

namespace sparseloom {
namespace {

constexpr std::int32_t kMax32 = std::numeric_limits<std::int32_t>::max();
constexpr std::int32_t kMin32 = std::numeric_limits<std::int32_t>::min();
constexpr std::int64_t kMax64 = std::numeric_limits<std::int64_t>::max();

struct RawIndex {
  std::int64_t rows = 48, cols = 128;
  BlockShape block = {16, 32};  // a grid of 3 x 4
  std::vector<std::int32_t> crow = {0, 2, 2, 5};
  std::vector<std::int32_t> col = {1, 3, 0, 1, 2};
};

void validate(const RawIndex& index) {
  validate_index("load", index.rows, index.cols, index.block, index.crow, index.col);
}

TEST(ValidateIndex, AcceptsGoodOnes) {
  EXPECT_NO_THROW(validate({}));
  EXPECT_NO_THROW(validate({.rows = 33, .cols = 97}));  // ragged, the same grid
  EXPECT_NO_THROW(validate({.crow = {0, 0, 0, 0}, .col = {}}));
  EXPECT_NO_THROW(validate({.crow = {0, 4, 8, 12}, .col = {0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3}}));
  EXPECT_NO_THROW(validate({.rows = 0, .crow = {0}, .col = {}}));
  EXPECT_NO_THROW(validate({.cols = 0, .crow = {0, 0, 0, 0}, .col = {}}));
  EXPECT_NO_THROW(validate({.rows = 0, .cols = 0, .crow = {0}, .col = {}}));
  EXPECT_NO_THROW(validate({.rows = 1, .cols = 1, .crow = {0, 1}, .col = {0}}));
}

struct BadIndex {
  const char* name;
  RawIndex index;
  std::vector<std::string> words;  // of the message: what was wrong, and where first
};

const std::vector<BadIndex>& bad_indices() {
  static const std::vector<BadIndex> cases = {
      {"NegativeRows", {.rows = -48}, {"rows >= 0", "[-48, 128]"}},
      {"NegativeCols", {.cols = -1}, {"cols >= 0", "[48, -1]"}},
      {"RowsOverflow", {.rows = kMax64}, {"2^31 - 1 blocks along each side"}},
      {"ColsOverflow", {.cols = kMax64}, {"2^31 - 1 blocks along each side"}},
      {"RowsNearOverflow", {.rows = kMax64 - 14}, {"2^31 - 1 blocks along each side"}},
      {"ProductOverflow", {.rows = std::int64_t{1} << 34, .cols = std::int64_t{1} << 35}, {"2^60 elements"}},
      {"BlockZero", {.block = {0, 32}}, {"got 0x32"}},
      {"BlockNegative", {.block = {16, -32}}, {"got 16x-32"}},
      {"BlockOdd", {.block = {16, 33}}, {"got 16x33"}},
      {"BlockHuge", {.block = {kMax32, kMax32}}, {"{8, 16, 32, 64, 128}"}},
      {"CrowEmpty", {.crow = {}, .col = {}}, {"crow of 4 entries", "got 0"}},
      {"CrowShort", {.crow = {0, 2, 5}}, {"crow of 4 entries", "got 3"}},
      {"CrowLong", {.crow = {0, 2, 2, 5, 5}}, {"crow of 4 entries", "got 5"}},
      {"CrowOfAnotherHeight", {.rows = 49}, {"crow of 5 entries", "got 4"}},
      {"CrowStartsLate", {.crow = {1, 2, 2, 5}}, {"crow[0] = 0", "got crow[0] = 1"}},
      {"CrowStartsNegative", {.crow = {-1, 2, 2, 5}}, {"got crow[0] = -1"}},
      {"CrowDescends", {.crow = {0, 2, 1, 5}}, {"ascending", "crow[2] = 1 after crow[1] = 2"}},
      {"CrowFallsToMinimum", {.crow = {0, 2, kMin32, 5}}, {"crow[2] = -2147483648 after crow[1] = 2"}},
      {"CrowPastTheEndAndBack", {.crow = {0, 2, 1000000, 5}}, {"end at 5", "crow[2] = 1000000"}},
      {"CrowMaximum", {.crow = {0, kMax32, kMax32, kMax32}}, {"end at 5", "crow[1] = 2147483647"}},
      {"CrowEndsEarly", {.crow = {0, 2, 2, 4}}, {"end at 5", "crow[3] = 4"}},
      {"CrowEndsLate", {.crow = {0, 2, 2, 6}}, {"end at 5", "crow[3] = 6"}},
      {"CrowAllZeroWithBlocks", {.crow = {0, 0, 0, 0}}, {"end at 5", "crow[3] = 0"}},
      {"NoRowsButBlocks", {.rows = 0, .crow = {0}}, {"end at 5", "crow[0] = 0"}},
      {"ColNegative", {.col = {1, 3, -1, 1, 2}}, {"col[2] = -1, block row 2; allowed 0..3"}},
      {"ColMinimum", {.col = {1, 3, 0, 1, kMin32}}, {"col[4] = -2147483648, block row 2"}},
      {"ColTooLarge", {.col = {1, 4, 0, 1, 2}}, {"col[1] = 4, block row 0; allowed 0..3"}},
      {"ColMaximum", {.col = {1, 3, 0, 1, kMax32}}, {"col[4] = 2147483647, block row 2; allowed 0..3"}},
      {"ColInFeaturesNotBlocks", {.col = {32, 96, 0, 32, 64}}, {"col[0] = 32, block row 0; allowed 0..3"}},
      {"ColInNoColumns", {.cols = 0}, {"col[0] = 1, block row 0; the matrix has no block columns"}},
      {"ColDescends",
       {.col = {3, 1, 0, 1, 2}},
       {"ascending order inside a row", "col[1] = 1 after col[0] = 3, block row 0"}},
      {"ColTwice",
       {.col = {1, 3, 0, 1, 1}},
       {"each block once", "a duplicate: col[4] = 1 after col[3] = 1, block row 2"}},
      {"ColFirstOfTwoErrors", {.col = {3, 3, 0, 9, 2}}, {"a duplicate: col[1] = 3"}},
  };
  return cases;
}

class BadIndices : public testing::TestWithParam<BadIndex> {};

// Exact vectors, so that AddressSanitizer sees a read one past the end; the constructor must say the same as
// the function.
TEST_P(BadIndices, AreRefusedNamingTheFirstBadEntry) {
  RawIndex index = GetParam().index;
  index.crow.shrink_to_fit();
  index.col.shrink_to_fit();
  for (const std::string& word : GetParam().words) {
    test::expect_error("load", {word}, [&] { validate(index); });
    test::expect_error("BlockIndex", {word},
                       [&] { BlockIndex(index.rows, index.cols, index.block, index.crow, index.col); });
  }
}

INSTANTIATE_TEST_SUITE_P(Corpus, BadIndices, testing::ValuesIn(bad_indices()),
                         [](const testing::TestParamInfo<BadIndex>& info) {
                           return std::string(info.param.name);
                         });

/// One random damage: an entry changed, swapped, dropped, doubled or inserted, a list cut, or the shape
/// changed.
void mutate(core::Rng& rng, RawIndex& index) {
  std::vector<std::int32_t>& list = rng.below(2) ? index.crow : index.col;
  const auto small = static_cast<std::int32_t>(rng.below(12)) - 2;
  const std::size_t at = list.empty() ? 0 : rng.below(list.size());
  const bool any = !list.empty();
  switch (rng.below(11)) {
    case 0:
      if (any) list[at] = small;
      break;
    case 1:
      if (any) list[at] = static_cast<std::int32_t>(rng.next());
      break;
    case 2:
      if (any) list[at] ^= std::int32_t{1} << rng.below(31);
      break;
    case 3:
      if (any) std::swap(list[at], list[rng.below(list.size())]);
      break;
    case 4:
      if (any) list.erase(list.begin() + static_cast<std::ptrdiff_t>(at));
      break;
    case 5: list.insert(list.begin() + static_cast<std::ptrdiff_t>(at), small); break;
    case 6:
      if (any) list.insert(list.begin() + static_cast<std::ptrdiff_t>(at), list[at]);
      break;
    case 7: list.resize(rng.below(list.size() + 1)); break;
    case 8: index.rows += static_cast<std::int64_t>(rng.below(33)) - 16; break;
    case 9: index.cols += static_cast<std::int64_t>(rng.below(65)) - 32; break;
    case 10: index.block = {8 << rng.below(5), 8 << rng.below(5)}; break;
  }
}

RawIndex good_index(core::Rng& rng) {
  const auto side = [&] { return static_cast<std::int32_t>(8 << rng.below(3)); };
  const BlockShape block = {side(), side()};
  const auto rows = static_cast<std::int64_t>(rng.below(100)),
             cols = static_cast<std::int64_t>(rng.below(100));
  const BlockIndex index(pattern::random(rows, cols, block, rng.uniform(), rng.next()));
  const IndexView view = index.view();
  return {
      rows, cols, block, {view.crow, view.crow + view.block_rows() + 1}, {view.col, view.col + view.blocks}};
}

// What validate_index lets through, everything behind it may trust: run it all, on arrays of exactly the
// sizes the API asks for.
void use(const RawIndex& raw) {
  const BlockIndex index(raw.rows, raw.cols, raw.block, raw.crow, raw.col);
  const IndexView view = index.view();
  ASSERT_EQ(index.pattern().count(),
            view.blocks);  // in range and without duplicates, or a bit would be missing
  ASSERT_EQ(BlockIndex(index.pattern()).version(), index.version());
  std::vector<std::uint16_t> dense(static_cast<std::size_t>(raw.rows * raw.cols)), back(dense.size());
  for (std::size_t i = 0; i < dense.size(); ++i) dense[i] = static_cast<std::uint16_t>(i + 1);
  std::vector<std::uint16_t> values(static_cast<std::size_t>(view.blocks * view.block_elements()));
  pack({dense.data(), DType::bf16, raw.rows, raw.cols, raw.cols}, view, values.data());
  unpack(view, values.data(), {back.data(), DType::bf16, raw.rows, raw.cols, raw.cols});
  const auto kept = static_cast<std::int64_t>(back.size()) - std::count(back.begin(), back.end(), 0);
  ASSERT_EQ(kept, index.pattern().stats().elements);
}

TEST(ValidateIndex, WhatSurvivesMutationIsSafeToUse) {
  int accepted = 0, refused = 0;
  for (std::uint64_t seed = 0; seed < 6000; ++seed) {
    core::Rng rng(seed);
    RawIndex index = good_index(rng);
    for (std::uint64_t damage = rng.below(4); damage > 0; --damage) mutate(rng, index);
    index.crow.shrink_to_fit();
    index.col.shrink_to_fit();
    try {
      validate(index);
    } catch (const Error& error) {
      ++refused;
      ASSERT_EQ(error.op(), "load");
      continue;
    }
    ++accepted;
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    ASSERT_NO_FATAL_FAILURE(use(index));
  }
  // Both sides of the fence were visited; a quarter of the seeds does no damage at all.
  EXPECT_GT(accepted, 1500);
  EXPECT_GT(refused, 1500);
}

}  // namespace
}  // namespace sparseloom
