// dW that is added to an fp32 gradient, on the CPU: every kernel by name, twice in a row, beside NaN, on any
// number of threads. How accurate it is on every shape: products_test.cpp.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kernels/bsr_linear/rows.h"
#include "kernels/case.h"
#include "runtime/cpu.h"

namespace sparseloom::testing {
namespace {

constexpr DType kTypes[] = {DType::f32, DType::f16, DType::bf16};

/// The fast ones, and the reference.
std::vector<const kernels::Kernel*> all_for(const Problem& problem) {
  static const kernels::Kernel reference = kernels::reference_kernel();
  std::vector<const kernels::Kernel*> list = runnable(problem);
  list.push_back(&reference);
  return list;
}

Case added(DType dtype, std::int64_t m, BlockShape block) {
  Case c;
  c.direction = Direction::dw, c.accumulate = true, c.dtype = dtype, c.m = m, c.block = block;
  c.rows = 3 * block.rows - 3, c.cols = 4 * block.cols - 5, c.density = 0.6;
  c.stride_padding = 1, c.values_shift = 1;  // the gradient lies at 4 bytes past a multiple of 64
  return c;
}

TEST(Accumulate, EveryDwKernelOfThisMachineIsExercised) {
  std::set<std::string> seen;
  for (const DType dtype : kTypes) {
    const Instance instance(added(dtype, 8, {32, 32}));
    for (const kernels::Kernel* kernel : runnable(instance.problem(1))) seen.insert(kernel->name);
  }
  Problem plain = Instance(added(DType::bf16, 8, {32, 32})).problem(1);
  plain.accumulate = false;
  for (const kernels::Kernel* kernel : runnable(plain))
    EXPECT_EQ(seen.count(kernel->name), 1u) << kernel->name;
}

TEST(Accumulate, TwoCallsAddBoth) {
  for (const DType dtype : kTypes)
    for (const BlockShape block : {BlockShape{8, 8}, {16, 32}, {64, 8}, {128, 128}})
      for (const std::int64_t m : {1, 50}) {
        Case c = added(dtype, m, block);
        c.integers = true;
        Instance instance(c);
        for (const kernels::Kernel* kernel : all_for(instance.problem(1))) {
          SCOPED_TRACE(kernel->name);
          const Matrix start = instance.before;
          const Matrix once = instance.run(*kernel, Executor::serial());
          expect_exact(instance, once, instance.answer());
          instance.before = once;
          expect_exact(instance, instance.run(*kernel, Executor::serial()), instance.answer());
          instance.before = start;
          EXPECT_EQ(instance.run(*kernel, Executor::serial()).bytes, once.bytes)
              << "other bits in another run";
        }
      }
}

TEST(Accumulate, NoTokensChangeNothing) {
  for (const DType dtype : kTypes) {
    Instance instance(added(dtype, 0, {16, 32}));
    instance.before.set(0, 0, -0.0);
    instance.before.set(1, 0, std::numeric_limits<double>::quiet_NaN());
    for (const kernels::Kernel* kernel : all_for(instance.problem(1)))
      EXPECT_EQ(instance.run(*kernel, Executor::serial()).bytes, instance.before.bytes) << kernel->name;
  }
}

// Infinite operands at the last row and column, under which the padding is: it stays as it was, and so does
// what they do not meet.
TEST(Accumulate, NothingIsAddedToPadding) {
  for (const DType dtype : kTypes)
    for (const BlockShape block : {BlockShape{8, 16}, {16, 32}, {64, 64}, {128, 8}}) {
      Case c = added(dtype, 9, block);
      c.density = 1;
      Instance instance(c);
      instance.x.set(2, c.cols - 1, std::numeric_limits<double>::infinity());
      instance.dy.set(2, c.rows - 1, std::numeric_limits<double>::quiet_NaN());
      const Instance::Answer answer = instance.answer();
      for (const kernels::Kernel* kernel : all_for(instance.problem(1))) {
        const Matrix out = instance.run(*kernel, Executor::serial());
        for (std::int64_t r = 0; r < out.rows; ++r)
          for (std::int64_t j = 0; j < out.cols; ++j)
            ASSERT_EQ(std::isfinite(out.at(r, j)),
                      std::isfinite(answer.exact[static_cast<std::size_t>(r * out.cols + j)]))
                << kernel->name << " " << describe(c) << " at " << r << ", " << j;
        for (std::int64_t b = 0; b < instance.index().blocks; ++b)
          for (std::int64_t i = 0; i < block.rows; ++i)
            for (std::int64_t j = 0; j < block.cols; ++j)
              if (b / 4 * block.rows + i >= c.rows || b % 4 * block.cols + j >= c.cols) {
                ASSERT_EQ(out.at(b * block.rows + i, j), 0)
                    << kernel->name << " " << describe(c) << " block " << b;
              }
      }
    }
}

// Tokens of several chunks too, whose sums pass through the workspace (AMX) or the gradient itself.
TEST(Accumulate, AnyNumberOfThreadsGivesTheSameBits) {
  for (const DType dtype : kTypes)
    for (const auto& [m, cols] : {std::pair{100, 720}, {700, 33000}}) {
      Case c = added(dtype, m, {16, 32});
      c.rows = 120, c.cols = cols, c.density = cols > 1000 ? 0.02 : 0.5;
      Instance instance(c);
      for (const kernels::Kernel* kernel : runnable(instance.problem(1))) {
        const Matrix one = instance.run(*kernel, Executor::serial());
        for (const int threads : {2, 7})
          EXPECT_EQ(instance.run(*kernel, backwards(threads)).bytes, one.bytes)
              << kernel->name << " on " << threads;
      }
    }
}

// What bf16's own gradient cannot hold: one micro-batch beside a thousand before it.
TEST(Accumulate, SumsOf16BitOperandsAreNotRounded) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    Case c = added(dtype, 3, {16, 16});
    c.integers = true;
    Instance instance(c);
    for (std::int64_t r = 0; r < instance.before.rows; ++r)
      for (std::int64_t j = 0; j < instance.before.cols; ++j) instance.before.set(r, j, 1 << 14);
    const Instance::Answer answer = instance.answer();
    for (const kernels::Kernel* kernel : all_for(instance.problem(1))) {
      SCOPED_TRACE(kernel->name);
      expect_exact(instance, instance.run(*kernel, Executor::serial()), answer);
    }
  }
}

}  // namespace
}  // namespace sparseloom::testing
