// The inner loops of one-shot pruning on small weights whose results are known, and what they refuse.
#include "sparseloom/one_shot.h"

#include <gtest/gtest.h>

#include <array>

#include "sparseloom/error.h"

namespace sparseloom {
namespace {

TEST(ColumnSweep, CorrectsTheColumnsAfterTheRemovedOne) {
  std::array<float, 3> w{4, 10, 20}, errors{};
  const std::array<float, 9> u{2, 1, 3, 0, 5, 1, 0, 0, 1};
  std::array<bool, 3> mask{false, true, false};
  ColumnSweep sweep{1, 3, w.data(), 3, u.data(), 3, mask.data(), errors.data()};
  column_sweep(sweep, {});
  EXPECT_EQ(w, (std::array<float, 3>{0, 8, 0}));        // 10 - 2 x 1
  EXPECT_EQ(errors, (std::array<float, 3>{2, 0, 14}));  // 4 / 2, then (20 - 2 x 3) / 1
}

TEST(ColumnSweep, ChoosesEachGroupFromCorrectedWeights) {
  // With the diagonal alone, the second group would keep its first element.
  std::array<float, 4> w{1, 9, 3, 2}, errors{};
  std::array<float, 16> u{};
  for (std::size_t i = 0; i < 4; ++i) u[5 * i] = 1;
  u[2] = 2;  // removing w_0 takes 2 from w_2
  std::array<bool, 4> mask{};
  ColumnSweep sweep{1, 4, w.data(), 4, u.data(), 4, mask.data(), errors.data(), 1, 2};
  column_sweep(sweep, {});
  EXPECT_EQ(mask, (std::array<bool, 4>{false, true, false, true}));
  EXPECT_EQ(w, (std::array<float, 4>{0, 9, 0, 2}));
}

TEST(ColumnSweep, OfEqualCostsKeepsTheFirst) {
  std::array<float, 4> w{1, -1, 1, -1}, errors{};
  std::array<float, 16> u{};
  for (std::size_t i = 0; i < 4; ++i) u[5 * i] = 1;
  std::array<bool, 4> mask{};
  ColumnSweep sweep{1, 4, w.data(), 4, u.data(), 4, mask.data(), errors.data(), 2, 4};
  column_sweep(sweep, {});
  EXPECT_EQ(mask, (std::array<bool, 4>{true, true, false, false}));
}

TEST(SwapPairs, KeepsTheElementThatCostsMoreAtItsBestValue) {
  const std::array<float, 2> w{1, 3};
  std::array<float, 2> values{1, 0};
  const std::array<float, 4> gram{1, 0.5f, 0.5f, 1};
  std::array<bool, 2> mask{true, false};
  EXPECT_EQ(swap_pairs({1, 2, w.data(), values.data(), gram.data(), mask.data(), 0, 10}, {}), 1);
  EXPECT_EQ(mask, (std::array<bool, 2>{false, true}));
  EXPECT_EQ(values, (std::array<float, 2>{0, 3.5f}));  // 3 and half of the 1 that it is correlated with
}

TEST(SwapPairs, StaysInsideOfGroupsAndBelowTheMost) {
  const std::array<float, 4> w{1, 9, 1, 9};
  std::array<float, 4> values{1, 0, 1, 0};
  std::array<float, 16> gram{};
  for (std::size_t i = 0; i < 4; ++i) gram[5 * i] = 1;
  std::array<bool, 4> mask{true, false, true, false};
  EXPECT_EQ(swap_pairs({1, 4, w.data(), values.data(), gram.data(), mask.data(), 2, 1}, {}), 1);
  EXPECT_EQ(mask, (std::array<bool, 4>{false, true, true, false}));
}

TEST(OneShot, RefusesWhatDoesNotFit) {
  std::array<float, 4> w{}, errors{};
  std::array<bool, 4> mask{};
  const ColumnSweep good{1, 4, w.data(), 4, w.data(), 4, mask.data(), errors.data()};
  ColumnSweep sweep = good;
  sweep.cols = kSweepColumns + 1;
  EXPECT_THROW(column_sweep(sweep, {}), Error);
  sweep = good, sweep.n = 3, sweep.m = 2;
  EXPECT_THROW(column_sweep(sweep, {}), Error);
  sweep = good, sweep.m = kSweepGroup + 1;
  EXPECT_THROW(column_sweep(sweep, {}), Error);
  sweep = good, sweep.factor = nullptr;
  EXPECT_THROW(column_sweep(sweep, {}), Error);
  Executor on_gpu;
  on_gpu.device = 0;
  EXPECT_THROW(swap_pairs({1, 4, w.data(), w.data(), w.data(), mask.data(), 0, 1}, on_gpu), Error);
  EXPECT_THROW(swap_pairs({1, 4, w.data(), w.data(), w.data(), mask.data(), -1, 1}, {}), Error);
  EXPECT_THROW(swap_pairs({1, 4, w.data(), nullptr, w.data(), mask.data(), 0, 1}, {}), Error);
}

}  // namespace
}  // namespace sparseloom
