// A dynamic index through the public calls: its plan outlives every topology, and its products are those of a
// fixed index.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "core/expect_error.h"
#include "layout/topology_tables.h"
#include "sparseloom/sparseloom.h"

namespace sparseloom::testing {
namespace {

using test::expect_error;

constexpr std::int64_t kRows = 150, kCols = 90, kTokens = 37;
constexpr BlockShape kBlock{16, 8};
constexpr int kGridRows = 10, kGridCols = 12;

std::vector<float> numbers(std::size_t count, std::uint64_t seed) {
  core::Rng rng(seed);
  std::vector<float> list(count);
  for (float& x : list) x = static_cast<float>(static_cast<int>(rng.below(2001)) - 1000) / 512.0f;
  return list;
}

class Dynamic : public ::testing::Test {
 protected:
  core::Rng rng{3};
  std::vector<std::uint8_t> mask = random_mask(rng, kGridRows, kGridCols, 0.3);
  Tables tables{kGridRows, kGridCols, mask};
  std::vector<float> values = numbers(tables.col.size() * 128, 4), x = numbers(kTokens * kCols, 5),
                     dy = numbers(kTokens * kRows, 6);
  Workspace workspace;

  IndexView index() const {
    return {kRows,
            kCols,
            kBlock,
            static_cast<std::int64_t>(tables.col.size()),
            tables.crow.data(),
            tables.col.data()};
  }
  TransposedView transposed() const { return {tables.ccol.data(), tables.row.data(), tables.slot.data()}; }

  std::vector<float> product(Direction direction, const IndexView& index, const TransposedView& transposed,
                             const Executor& executor, const std::string& kernel) {
    const auto plan = make_plan(describe(index, DType::f32, direction, kTokens), index, executor, kernel);
    const std::span<std::byte> scratch = workspace.at_least(plan->workspace_bytes);
    std::vector<float> out(
        direction == Direction::dw
            ? values.size()
            : static_cast<std::size_t>(kTokens * (direction == Direction::dx ? kCols : kRows)));
    if (direction == Direction::forward)
      linear(*plan, view(x.data(), kTokens, kCols), index, values.data(), nullptr,
             view(out.data(), kTokens, kRows), scratch, executor);
    else if (direction == Direction::dx)
      linear_dx(*plan, view(dy.data(), kTokens, kRows), index, transposed, values.data(),
                view(out.data(), kTokens, kCols), scratch, executor);
    else
      linear_dw(*plan, view(dy.data(), kTokens, kRows), view(x.data(), kTokens, kCols), index, out.data(),
                scratch, executor);
    return out;
  }
};

TEST_F(Dynamic, OnePlanServesEveryTopologyWithTheBitsOfAFixedIndex) {
  for (const Executor& executor : {Executor::serial(), Executor::pool(3)})
    for (int change = 0; change < 3; ++change) {
      shuffle(rng, mask);
      set_topology(mask.data(), tables.view());
      const BlockIndex fixed(kRows, kCols, kBlock, tables.crow, tables.col);
      for (const Direction direction : {Direction::forward, Direction::dx, Direction::dw}) {
        const auto open = make_plan(describe(index(), DType::f32, direction, kTokens), index(), executor);
        for (const Candidate& candidate : open->candidates) {
          if (!candidate.refusal.empty()) continue;
          EXPECT_EQ(product(direction, index(), transposed(), executor, candidate.kernel),
                    product(direction, fixed.view(), fixed.transposed(), executor, candidate.kernel))
              << candidate.kernel << ' ' << name_of(direction);
        }
      }
    }
  const Problem problem = describe(index(), DType::f32, Direction::forward, kTokens);
  const auto plan = make_plan(problem, index(), Executor::serial());
  shuffle(rng, mask);
  set_topology(mask.data(), tables.view());
  EXPECT_EQ(make_plan(problem, index(), Executor::serial()), plan);
}

TEST_F(Dynamic, BlocksMoveWithTheirValues) {
  const std::vector<float> before = values;
  const std::vector<std::uint8_t> first = mask;
  shuffle(rng, mask);
  set_topology(mask.data(), tables.view(), {}, Executor::serial());
  std::vector<std::byte> scratch(values.size() * sizeof(float) + 16);
  const auto offset = reinterpret_cast<std::uintptr_t>(scratch.data()) % 16;
  move_blocks(values.data(), 128 * sizeof(float), tables.moved,
              std::span(scratch).subspan((16 - offset) % 16), Executor::serial());
  int kept = 0;
  for (std::size_t slot = 0; slot < tables.moved.size(); ++slot) {
    const std::int32_t old = tables.moved[slot];
    kept += old >= 0;
    for (std::size_t e = 0; e < 128; ++e)
      ASSERT_EQ(values[slot * 128 + e], old < 0 ? 0.0f : before[static_cast<std::size_t>(old) * 128 + e]);
  }
  int both = 0;
  for (std::size_t cell = 0; cell < mask.size(); ++cell) both += mask[cell] && first[cell];
  EXPECT_EQ(kept, both);
  EXPECT_GT(kept, 0);
}

TEST_F(Dynamic, WhatDoesNotFitIsRefused) {
  TopologyTables wrong = tables.view();
  wrong.capacity = kGridRows * kGridCols + 1;
  expect_error("set_topology", {"120", "121"},
               [&] { set_topology(mask.data(), wrong, {}, Executor::serial()); });
  wrong.block_rows = wrong.block_cols = std::int64_t{1} << 14;
  expect_error("set_topology", {"2^28"}, [&] { set_topology(mask.data(), wrong, {}, Executor::serial()); });
  expect_error("move_blocks", {"workspace", "0 bytes"},
               [&] { move_blocks(values.data(), 512, tables.moved, {}, Executor::serial()); });
  expect_error("set_topology", {"cuda:63"},
               [&] { set_topology(mask.data(), tables.view(), {}, Executor::cuda(63)); });
}

}  // namespace
}  // namespace sparseloom::testing
