// Every fast kernel against fp64, per output tile, and exactly on small integers.
#include <gtest/gtest.h>

#include <set>

#include "core/check.h"
#include "kernels/bsr_linear/cpu/panel.h"
#include "kernels/bsr_linear/cpu/panel_memory.h"
#include "kernels/bsr_linear/rows.h"
#include "kernels/case.h"
#include "kernels/scaled_case.h"
#include "runtime/cpu.h"

namespace sparseloom::testing {
namespace {

constexpr Direction kDirections[] = {Direction::forward, Direction::dx, Direction::dw};
constexpr DType kTypes[] = {DType::f32, DType::f16, DType::bf16};

void check_all(const Case& c) {
  Instance instance(c);
  const auto kernels = runnable(instance.problem(1));
  if (kernels.empty()) return;
  const Instance::Answer answer = instance.answer();
  for (const kernels::Kernel* kernel : kernels) {
    SCOPED_TRACE(kernel->name);
    expect_accurate(instance, instance.run(*kernel, Executor::serial()), answer);
  }
}

class Products : public ::testing::TestWithParam<std::tuple<Direction, DType, bool>> {
 protected:
  Case base() const {
    Case c;
    std::tie(c.direction, c.dtype, c.accumulate) = GetParam();
    return c;
  }
};

TEST_P(Products, AllBlockShapes) {
  for (const std::int32_t bm : {8, 16, 32, 64, 128})
    for (const std::int32_t bn : {8, 16, 32, 64, 128}) {
      Case c = base();
      c.m = 35, c.rows = 3 * bm, c.cols = 4 * bn, c.block = {bm, bn}, c.density = 0.5;
      check_all(c);
    }
}

TEST_P(Products, Tokens) {
  for (const std::int64_t m : {0, 1, 2, 3, 4, 5, 7, 8, 16, 17, 31, 48, 49, 64, 130}) {
    Case c = base();
    c.m = m, c.rows = 96, c.cols = 128, c.block = {32, 16};
    check_all(c);
  }
}

TEST_P(Products, RaggedEdgesAndStrides) {
  for (const BlockShape block : {BlockShape{8, 8}, {16, 32}, {64, 8}, {32, 64}, {128, 128}})
    for (const std::int64_t m : {3, 50})
      for (const std::int64_t cut : {1, 3, 7}) {
        Case c = base();
        c.m = m, c.block = block, c.stride_padding = cut;
        c.rows = 3 * block.rows - cut, c.cols = 3 * block.cols - cut, c.density = 0.6;
        check_all(c);
        c.rows = cut, c.cols = cut, c.density = 1;  // one block, mostly padding
        check_all(c);
      }
}

TEST_P(Products, EmptyAndFull) {
  for (const double density : {0.0, 0.05, 1.0})
    for (const std::int64_t m : {5, 20}) {
      Case c = base();
      c.m = m, c.rows = 100, c.cols = 200, c.block = {16, 16}, c.density = density;
      c.bias = c.direction == Direction::forward;
      check_all(c);
    }
  Case c = base();
  c.m = 4, c.block = {16, 16};
  c.rows = 0, c.cols = 64;
  check_all(c);
  c.rows = 64, c.cols = 0;
  check_all(c);
}

TEST_P(Products, SmallIntegersExactly) {
  for (const BlockShape block : {BlockShape{8, 8}, {32, 32}, {64, 16}, {16, 128}})
    for (const std::int64_t m : {1, 6, 57}) {
      Case c = base();
      c.m = m, c.rows = 250, c.cols = 300, c.block = block, c.integers = true, c.density = 0.1;
      c.bias = c.direction == Direction::forward;
      Instance instance(c);
      const Instance::Answer answer = instance.answer();
      for (const kernels::Kernel* kernel : runnable(instance.problem(1))) {
        SCOPED_TRACE(kernel->name);
        expect_exact(instance, instance.run(*kernel, Executor::serial()), answer);
      }
    }
}

// Tokens and depth that do not fit one chunk of the workspace, of any kernel.
TEST_P(Products, SeveralChunks) {
  Case c = base();
  c.m = 600, c.rows = 40, c.cols = 33000, c.block = {8, 128}, c.density = 0.02;
  if (c.direction == Direction::dx) std::swap(c.rows, c.cols), std::swap(c.block.rows, c.block.cols);
  check_all(c);
}

// Long strips, whose depth the panel kernels cut into K tiles (panel_memory.h): sums pass through the
// workspace, on any number of threads by the same cuts. Skewed: lists that end before the last K tile begins.
TEST(KTiles, OfDepth) {
  kernels::cpu::PanelOps ops{};
  ops.lanes = 16, ops.depth_step = 1;
  for (const Direction direction : {Direction::forward, Direction::dx})
    for (const DType dtype : {DType::f32, DType::f16})
      for (const BlockShape block : {BlockShape{16, 16}, {32, 64}, {128, 32}})
        for (const bool skewed : {false, true}) {
          const bool forward = direction == Direction::forward;
          Case c;
          c.direction = direction, c.dtype = dtype, c.block = block, c.skewed = skewed;
          c.m = 115, c.rows = forward ? 130 : 4700, c.cols = forward ? 4700 : 130,
          c.density = skewed ? 0.93 : 0.8;
          c.bias = forward, c.stride_padding = 3;
          Instance instance(c);
          if (!skewed) {
            ASSERT_GT(kernels::cpu::PanelMemory(ops, instance.problem(1)).k_tiles, 1);
          }
          const Instance::Answer answer = instance.answer();
          for (const kernels::Kernel* kernel : runnable(instance.problem(1))) {
            SCOPED_TRACE(kernel->name);
            const Matrix one = instance.run(*kernel, Executor::serial());
            expect_accurate(instance, one, answer);
            EXPECT_EQ(instance.run(*kernel, backwards(3)).bytes, one.bytes);
          }
        }
}

// Outputs that leave past the caches, where their rows are whole cache lines (deferred_lines.h): with AMX
// those that outgrow L2, elsewhere those of calls beyond kKeptBytes.
TEST(PastTheCaches, Outputs) {
  const std::int64_t l2 = runtime::l2_cache_bytes() + 1;
  for (const Direction direction : {Direction::forward, Direction::dx})
    for (const DType dtype : kTypes)
      for (const auto& [bytes, side, padding] : {std::tuple{l2, 8, 0},
                                                 {l2, 64, 3},
                                                 {kernels::cpu::kKeptBytes, 16, 0},
                                                 {kernels::cpu::kKeptBytes, 16, 3}}) {
        const bool forward = direction == Direction::forward;
        const auto size = static_cast<std::int64_t>(size_of(dtype));
        Case c;
        c.direction = direction, c.dtype = dtype, c.block = {side, side}, c.density = 0.5,
        c.stride_padding = padding;
        const std::int64_t outputs = 2048 + 64 / size * 3, depth = bytes == l2 ? 128 : 32;
        c.m = core::ceil_div(bytes, outputs * size);
        c.rows = forward ? outputs : depth, c.cols = forward ? depth : outputs;
        c.bias = forward;
        check_all(c);
      }
}

std::string name_of_param(const ::testing::TestParamInfo<std::tuple<Direction, DType, bool>>& info) {
  const auto [direction, dtype, accumulate] = info.param;
  return std::string(name_of(direction)) + "_" + name_of(dtype) + (accumulate ? "_accumulate" : "");
}

INSTANTIATE_TEST_SUITE_P(Cpu, Products,
                         ::testing::Combine(::testing::ValuesIn(kDirections), ::testing::ValuesIn(kTypes),
                                            ::testing::Values(false)),
                         name_of_param);
INSTANTIATE_TEST_SUITE_P(CpuSums, Products,
                         ::testing::Combine(::testing::Values(Direction::dw), ::testing::ValuesIn(kTypes),
                                            ::testing::Values(true)),
                         name_of_param);

TEST(Epilogue, BiasAndActivations) {
  for (const DType dtype : kTypes)
    for (const Activation activation : activations())
      for (const std::int64_t m : {4, 70}) {
        Case c;
        c.dtype = dtype, c.activation = activation, c.bias = true;
        c.m = m, c.rows = 61, c.cols = 256, c.block = {16, 32}, c.density = 0.3;
        check_all(c);
      }
}

TEST(Kernels, EachIsExercisedOnThisMachine) {
  std::set<std::string> seen;
  for (const Direction direction : kDirections)
    for (const DType dtype : kTypes) {
      Problem p;
      p.direction = direction, p.dtype = dtype, p.m = 4, p.rows = 64, p.cols = 64, p.block = {32, 32},
      p.blocks = 1, p.threads = 1;
      for (const kernels::Kernel* kernel : runnable(p)) seen.insert(kernel->name);
    }
  ScaledProblem i8;  // by scaled_test.cpp
  i8.dtype = DType::i8, i8.m = 4, i8.rows = 64, i8.cols = 64, i8.block = {32, 32}, i8.blocks = 1,
  i8.threads = 1;
  for (const kernels::ScaledKernel* kernel : scaled_runnable(i8)) seen.insert(kernel->name);
  const auto expect_seen = [&seen](const auto& kernels) {
    for (const auto& kernel : kernels)
      EXPECT_EQ(seen.count(kernel.name), runtime::active_isa().has(kernel.isa) ? 1u : 0u) << kernel.name;
  };
  expect_seen(kernels::cpu_kernels());
  expect_seen(kernels::cpu_scaled_kernels());
}

// Every fast forward kernel: whole groups of eight outputs and ragged ones, few tokens and several panels.
TEST(Residual, IsAddedBehindTheActivation) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16})
    for (const BlockShape block : {BlockShape{8, 8}, {16, 32}, {64, 64}})
      for (const std::int64_t m : {1, 3, 8, 70})
        for (const Activation activation : {Activation::none, Activation::gelu_erf}) {
          Case c;
          c.dtype = dtype, c.m = m, c.rows = m == 3 ? 131 : 128, c.cols = 200, c.block = block,
          c.density = 0.4;
          c.bias = m != 8, c.residual = true, c.activation = activation, c.stride_padding = m == 70 ? 3 : 0;
          Instance instance(c);
          const Instance::Answer answer = instance.answer();
          const auto kernels = runnable(instance.problem(2));
          ASSERT_FALSE(kernels.empty() && runtime::active_isa().has(runtime::Isa::avx2));
          for (const kernels::Kernel* kernel : kernels) {
            SCOPED_TRACE(kernel->name);
            expect_accurate(instance, instance.run(*kernel, backwards(2)), answer);
          }
        }
}

}  // namespace
}  // namespace sparseloom::testing
