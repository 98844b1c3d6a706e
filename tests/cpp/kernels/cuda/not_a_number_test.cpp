// NaN and infinity reach what they must and nothing else, and what stores no block is zero all the same.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/contract.h"

namespace sparseloom::testing {
namespace {

constexpr BlockShape kBlocks[] = {{8, 8}, {8, 128}, {16, 16}, {32, 8}, {64, 64}, {128, 16}, {128, 128}};

struct BlockAndAlignment {
  BlockShape block;
  bool aligned;  // rows of x and dy in multiples of 16 bytes, which TMA asks for
};

// The kernels on TMA take large blocks alone.
std::vector<BlockAndAlignment> blocks_and_alignments() {
  std::vector<BlockAndAlignment> list;
  for (const BlockShape block : kBlocks) list.push_back({block, false});
  for (const BlockShape block : {BlockShape{32, 32}, {32, 128}, {64, 64}, {128, 128}})
    list.push_back({block, true});
  return list;
}

enum class Poison { quiet_nan, all_ones, infinity };

void set(Matrix& matrix, std::int64_t r, std::int64_t c, Poison poison) {
  switch (poison) {
    case Poison::quiet_nan: matrix.set(r, c, std::numeric_limits<double>::quiet_NaN()); break;
    case Poison::all_ones: matrix.poison(r, c); break;
    case Poison::infinity: matrix.set(r, c, std::numeric_limits<double>::infinity()); break;
  }
}

// The fp64 answer multiplies stored blocks alone, so it is not finite exactly where the kernel's may not be;
// every other element keeps the bits it had without the poison.
void expect_contained(Instance& instance, const kernels::Kernel& kernel, const Matrix& clean) {
  const Instance::Answer answer = instance.answer();
  const Matrix out = run_on_device(instance, kernel);
  for (std::int64_t r = 0; r < out.rows; ++r)
    for (std::int64_t c = 0; c < out.cols; ++c) {
      const bool finite = std::isfinite(answer.exact[static_cast<std::size_t>(r * out.cols + c)]);
      ASSERT_EQ(std::isfinite(out.at(r, c)), finite)
          << kernel.name << " " << describe(instance.c) << " at " << r << ", " << c;
      if (finite) {
        ASSERT_EQ(out.at(r, c), clean.at(r, c))
            << kernel.name << " " << describe(instance.c) << " at " << r << ", " << c;
      }
    }
}

TEST_P(CudaContract, NotANumberStaysUnderStoredBlocks) {
  int tried = 0;
  for (const auto [block, aligned] : blocks_and_alignments())
    for (const std::int64_t m : {6, 60}) {
      Case c = base();
      c.m = m, c.rows = 2 * block.rows + (aligned ? 56 : 61), c.cols = 2 * block.cols + (aligned ? 72 : 75),
      c.block = block;
      Instance instance(c);
      for (const kernels::Kernel* kernel : runnable_on_device(instance.cuda_problem(0))) {
        if (kernel->caveat != nullptr) continue;
        const Matrix clean = run_on_device(instance, *kernel);
        const auto try_at = [&](Matrix& operand, std::int64_t row, std::int64_t col) {
          const Matrix before = operand;
          set(operand, row, col, static_cast<Poison>(tried++ % 3));
          expect_contained(instance, *kernel, clean);
          operand = before;
        };
        Matrix& a = c.direction == Direction::forward ? instance.x : instance.dy;
        try_at(a, 3, 0);
        try_at(a, m - 1, a.cols / 2);
        try_at(a, 0, a.cols - 1);  // the last column before what must not be read
        if (c.direction == Direction::dw) {
          try_at(instance.x, 3, 40);
          try_at(instance.x, m - 1, c.cols - 1);
        } else if (instance.values.rows > 0) {
          try_at(instance.values, 0, block.cols / 2);
        }
        if (HasFatalFailure()) return;
      }
    }
}

/// The units that a kernel multiplies whole where any block in them is stored: rows x columns of W.
BlockShape unit_of(const kernels::Kernel& kernel, BlockShape block, bool dx) {
  const std::string name = kernel.name;
  // Slices of 64 outputs x 16 positions of the reduction.
  if (name == "sm90_expanded") return dx ? BlockShape{16, 64} : BlockShape{64, 16};
  const std::int32_t side = name == "sm90_mma_merged" ? 16 : 32;
  return {std::max(block.rows, side), std::max(block.cols, side)};
}

// A kernel that merges or expands blocks multiplies units of W of which any block is stored, and nothing
// else.
TEST_P(CudaContract, NotANumberStaysUnderMergedUnits) {
  if (GetParam().direction == Direction::dw) return;
  for (const BlockShape block : {BlockShape{8, 8}, {16, 16}, {8, 64}, {128, 16}}) {
    Case c = base();
    c.m = 60, c.rows = 4 * std::max(block.rows, 32), c.cols = 4 * std::max(block.cols, 32), c.block = block,
    c.density = 0.1;
    Instance instance(c);
    const bool dx = c.direction == Direction::dx;
    Matrix& a = dx ? instance.dy : instance.x;
    const std::int64_t poisoned = 7;
    for (const kernels::Kernel* kernel : runnable_on_device(instance.cuda_problem(0))) {
      if (kernel->caveat == nullptr) continue;
      const BlockShape unit = unit_of(*kernel, block, dx);
      std::set<std::pair<std::int64_t, std::int64_t>> units;
      const auto per = [](std::int32_t of_block, std::int32_t of_unit) {
        return std::max(1, of_block / of_unit);  // units that a block reaches over
      };
      for (std::int64_t r = 0; r + 1 < static_cast<std::int64_t>(instance.crow.size()); ++r)
        for (std::int32_t i = instance.crow[r]; i < instance.crow[r + 1]; ++i)
          for (int down = 0; down < per(block.rows, unit.rows); ++down)
            for (int over = 0; over < per(block.cols, unit.cols); ++over)
              units.insert(
                  {r * block.rows / unit.rows + down, instance.col[i] * block.cols / unit.cols + over});
      const Matrix clean = run_on_device(instance, *kernel), before = a;
      set(a, 3, poisoned, Poison::quiet_nan);
      const Matrix out = run_on_device(instance, *kernel);
      a = before;
      for (std::int64_t t = 0; t < out.rows; ++t)
        for (std::int64_t o = 0; o < out.cols; ++o) {
          const bool under = t == 3 && (dx ? units.count({poisoned / unit.rows, o / unit.cols})
                                           : units.count({o / unit.rows, poisoned / unit.cols}));
          ASSERT_EQ(std::isnan(out.at(t, o)), under)
              << kernel->name << " " << describe(c) << " at " << t << ", " << o;
          if (!under) {
            ASSERT_EQ(out.at(t, o), clean.at(t, o))
                << kernel->name << " " << describe(c) << " at " << t << ", " << o;
          }
        }
    }
  }
}

// Padded rows and columns of dW stay zero even when the other operand is infinite.
TEST_P(CudaContract, PaddingOfDwIsZero) {
  if (GetParam().direction != Direction::dw) return;  // the other directions store no padding
  for (const auto [block, aligned] : blocks_and_alignments())
    for (const std::int64_t m : {9, 70}) {
      Case c = base();
      c.m = m, c.rows = 2 * block.rows - (aligned ? 8 : 5), c.cols = 2 * block.cols - (aligned ? 8 : 3),
      c.block = block;
      c.density = 1;
      Instance instance(c);
      instance.x.set(2, c.cols - 1, std::numeric_limits<double>::infinity());
      instance.dy.set(2, c.rows - 1, std::numeric_limits<double>::infinity());
      for (const kernels::Kernel* kernel : runnable_on_device(instance.cuda_problem(0))) {
        const Matrix out = run_on_device(instance, *kernel);
        for (std::int64_t b = 0; b < 4; ++b)
          for (std::int64_t i = 0; i < block.rows; ++i)
            for (std::int64_t j = 0; j < block.cols; ++j)
              if (b / 2 * block.rows + i >= c.rows || b % 2 * block.cols + j >= c.cols) {
                ASSERT_EQ(out.at(b * block.rows + i, j), 0)
                    << kernel->name << " " << describe(c) << " block " << b;
              }
      }
    }
}

TEST_P(CudaContract, NotANumberPassesThroughTheEpilogue) {
  if (GetParam().direction != Direction::forward) return;  // the only one that has an epilogue
  for (const Activation activation : functions())
    for (const std::int64_t m : {5, 70}) {
      Case c = base();
      c.m = m, c.rows = 40, c.cols = 64, c.block = {8, 16}, c.bias = true, c.activation = activation;
      Instance instance(c);
      instance.bias.set(0, 5, std::numeric_limits<double>::quiet_NaN());
      for (const kernels::Kernel* kernel : runnable_on_device(instance.cuda_problem(0))) {
        const Matrix out = run_on_device(instance, *kernel);
        for (std::int64_t t = 0; t < c.m; ++t)
          for (std::int64_t o = 0; o < c.rows; ++o)
            ASSERT_EQ(std::isnan(out.at(t, o)), o == 5) << kernel->name;
      }
    }
}

TEST_P(CudaContract, NothingStoredIsStillWritten) {
  for (const BlockShape block : kBlocks)
    for (const std::int64_t m : {1, 90}) {
      Case c = base();
      c.m = m, c.rows = 205, c.cols = 171, c.block = block, c.density = 0, c.stride_padding = 1,
      c.integers = true;
      check_on_device(c);
      if (c.direction == Direction::forward) c.bias = true, c.activation = Activation::relu;
      check_on_device(c);
    }
}

}  // namespace
}  // namespace sparseloom::testing
