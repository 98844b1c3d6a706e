// A lent GEMM is timed within a budget: whole where it is fast, on a part where the whole would take seconds.
#include "ops/gemm_rate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "ops/measured_rate.h"

namespace sparseloom::ops {
namespace {

constexpr double kSlowRate = 0.26e9;  // of torch's fp16 product behind dX

struct Calls {
  double flops = 0, largest = 0;
};

double note(void* context, const Gemm& product) {
  Calls& calls = *static_cast<Calls*>(context);
  const double flops =
      2.0 * static_cast<double>(product.c.rows * product.c.cols) * static_cast<double>(product.a.cols);
  calls.flops += flops;
  calls.largest = std::max(calls.largest, flops);
  return flops;
}

void fast(void* context, const Gemm& product) { note(context, product); }
void slow(void* context, const Gemm& product) {
  std::this_thread::sleep_for(std::chrono::duration<double>(note(context, product) / kSlowRate));
}

Problem backward_of_2048() {
  Problem p;
  p.direction = Direction::dx;
  p.dtype = DType::f16;
  p.m = 512, p.rows = p.cols = 2048;
  return p;
}

TEST(GemmRate, OfASlowProductIsFoundWithoutRunningItWhole) {
  Calls calls;
  Executor executor;
  executor.context = &calls;
  executor.gemm = slow;
  const double rate = gemm_rate(backward_of_2048(), executor);
  // Seconds. The whole product takes 16, three times; .07 of a quiet machine, and .4 of each of three shapes
  // where sleepers wake late.
  EXPECT_LE(calls.largest / kSlowRate, 0.2);
  EXPECT_LT(calls.flops / kSlowRate, 2);
  EXPECT_LE(rate, kSlowRate);
  EXPECT_GT(rate, 0.9 * kSlowRate);  // none is taken for slower, whoever wakes late
  const double before = calls.flops;
  EXPECT_EQ(gemm_rate(backward_of_2048(), executor), rate);
  EXPECT_EQ(calls.flops, before);
}

TEST(GemmRate, OfAFastProductIsThatOfTheWholeShape) {
  Calls calls;
  Executor executor;
  executor.context = &calls;
  executor.gemm = fast;
  EXPECT_GT(gemm_rate(backward_of_2048(), executor), 1e12);
  EXPECT_EQ(calls.largest, 2.0 * 512 * 2048 * 2048);
}

void note_sums_over_tokens(void* context, const Gemm& product) {
  const ConstMatrixView &a = product.a, &b = product.b;
  EXPECT_TRUE(product.a_transposed && !product.b_transposed);
  EXPECT_EQ(a.rows, b.rows);  // tokens
  EXPECT_EQ(a.cols, product.c.rows);
  EXPECT_EQ(b.cols, product.c.cols);
  static_cast<Calls*>(context)->largest =
      std::max(static_cast<Calls*>(context)->largest, static_cast<double>(product.c.rows * b.cols * a.rows));
}

TEST(GemmRate, OfDwIsThatOfASumOverTheTokens) {
  Calls calls;
  Executor executor;
  executor.context = &calls;
  executor.gemm = note_sums_over_tokens;
  Problem p = backward_of_2048();
  p.direction = Direction::dw;
  p.m = 130, p.rows = 1030, p.cols = 520;
  EXPECT_GT(gemm_rate(p, executor), 0);
  EXPECT_EQ(calls.largest, 128.0 * 1024 * 512);
}

// Two of three calls wait for a thread that comes late, as beside busy processes.
void late(void* context, const Gemm& product) {
  static int calls = 0;
  note(context, product);
  if (++calls % 3 != 0) std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

TEST(GemmRate, IsThatOfTheRunsThatNobodyDisturbed) {
  Calls calls;
  Executor executor;
  executor.context = &calls;
  executor.gemm = late;
  EXPECT_GT(gemm_rate(backward_of_2048(), executor), 1e12);
  EXPECT_EQ(calls.largest, 2.0 * 512 * 2048 * 2048);
}

// Every call waits longer than the one before, so that none confirms another, until `quiet`.
struct Busy {
  int calls = 0;
  bool quiet = false;
};
void ever_later(void* context, const Gemm&) {
  Busy& busy = *static_cast<Busy*>(context);
  ++busy.calls;
  if (!busy.quiet) std::this_thread::sleep_for(std::chrono::milliseconds(4 << std::min(busy.calls, 4)));
}

TEST(GemmRate, ThatOthersDisturbedIsMeasuredAgainLater) {
  Busy busy;
  Executor executor;
  executor.context = &busy;
  executor.gemm = ever_later;
  Problem p = backward_of_2048();
  p.m = 1, p.rows = p.cols = 64;
  const std::size_t before = rate_generation();
  const double disturbed = gemm_rate(p, executor);
  const int calls = busy.calls;
  EXPECT_EQ(gemm_rate(p, executor), disturbed);  // not yet: it costs time
  EXPECT_EQ(busy.calls, calls);
  busy.quiet = true;
  double rate = disturbed;
  // A test beside busy processes may take several measurements.
  for (int i = 0; i < 100 && rate == disturbed; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    rate = gemm_rate(p, executor);
  }
  EXPECT_GT(rate, disturbed);
  EXPECT_GT(rate_generation(), before);  // the plans of the disturbed rate are made again
}

TEST(GemmRate, OfOneTokenAndOddSizesIsFoundToo) {
  Calls calls;
  Executor executor;
  executor.context = &calls;
  executor.gemm = slow;
  Problem p = backward_of_2048();
  p.m = 1, p.rows = 8191, p.cols = 3;
  EXPECT_GT(gemm_rate(p, executor), 0);
  p.m = 0;
  EXPECT_EQ(gemm_rate(p, executor), 0);
}

}  // namespace
}  // namespace sparseloom::ops
