// The predictions of the CUDA rows against what an H200 took for problems of the sweeps. They need no GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "kernels/bsr_linear/cuda/rows.h"
#include "kernels/bsr_linear/verb.h"
#include "kernels/cuda/measured_h200.h"
#include "kernels/generic/predict_dense.h"

namespace sparseloom::testing {
namespace {

const plan::Machine kH200{
    runtime::Isa::generic, {}, {90, 132, 60u << 20, 227u << 10, 1.98e9, 4.8e12}, {}, {132, 66, 32, 16}};

Problem problem_of(const Record& record) {
  Problem p;
  p.direction = record.direction, p.dtype = record.dtype, p.m = record.m;
  p.rows = record.rows, p.cols = record.cols, p.block = record.block, p.blocks = record.blocks;
  p.facts = Facts::of_digest(record.digest);
  p.device = 0, p.can_gemm = true;
  return p;
}

double predicted_us(const std::string& kernel, const Problem& p, const plan::Machine& machine = kH200) {
  if (kernel == "dense") return kernels::dense::predict_us(p, machine);
  for (const kernels::Kernel& row : kernels::cuda_kernels())
    if (kernel == row.name) {
      const kernels::bsr_linear::Answer answer = kernels::bsr_linear::ask(row, p, machine);
      EXPECT_EQ(answer.refusal, "") << kernel;
      return answer.predicted_us;
    }
  ADD_FAILURE() << "no row " << kernel;
  return std::numeric_limits<double>::infinity();
}

// Among the rows that were timed: the one with the least prediction takes at most 1.05 of the fastest's time,
// and its prediction lies within 1.3 times of that.
TEST(Predictions, ChooseWhatWasMeasuredFastest) {
  for (const Record& record : kRecords) {
    const Problem p = problem_of(record);
    SCOPED_TRACE(to_string(p));
    Timed chosen{"", 0};
    double least = std::numeric_limits<double>::infinity(), fastest = least;
    for (const Timed& each : record.timed) {
      fastest = std::min(fastest, each.us);
      if (const double us = predicted_us(each.kernel, p); us < least) least = us, chosen = each;
    }
    if (record.miss != Miss::choice && record.miss != Miss::both) {
      EXPECT_LE(chosen.us, 1.05 * fastest) << chosen.kernel;
    }
    if (record.miss != Miss::time && record.miss != Miss::both) {
      EXPECT_LE(least, 1.3 * chosen.us) << chosen.kernel;
      EXPECT_GE(least, chosen.us / 1.3) << chosen.kernel;
    }
  }
}

// On an H100: pruned masks of 4096 x 14336, then problems of a sweep with more tiles of tokens than
// multiprocessors.
TEST(Predictions, OfExpandedBlocksOnAnH100) {
  plan::Machine h100 = kH200;
  h100.cuda.memory_bytes = 3.35e12;
  struct Product {
    Direction direction;
    std::int64_t m;
    int side;
    double density, us;
    std::int64_t rows = 14336, cols = 4096;
  };
  constexpr auto kForward = Direction::forward, kDx = Direction::dx;
  for (const Product& each : {Product{kForward, 64, 16, 0.25, 28.5},
                              {kForward, 128, 16, 0.1, 29.5},
                              {kForward, 128, 16, 0.5, 47.8},
                              {kForward, 512, 16, 0.1, 68.4},
                              {kForward, 512, 16, 0.5, 102.1},
                              {kForward, 2048, 16, 0.25, 295.4},
                              {kForward, 256, 8, 0.1, 58.9},
                              {kForward, 128, 32, 0.25, 35.3},
                              {kDx, 128, 16, 0.25, 66.9},
                              {kDx, 512, 16, 0.5, 139.5},
                              {kForward, 35894, 32, 0.479, 190.6, 1024, 1024},
                              {kForward, 37085, 16, 0.245, 306.8, 2304, 768},
                              {kForward, 33248, 32, 0.641, 112.2, 768, 768},
                              {kDx, 21322, 32, 0.517, 128.9, 2048, 512},
                              {kDx, 35759, 32, 0.456, 2475, 4096, 4096}}) {
    const std::int64_t cells = each.rows * each.cols / (each.side * each.side);
    const Problem p = problem_of({each.direction,
                                  DType::bf16,
                                  each.m,
                                  each.rows,
                                  each.cols,
                                  {each.side, each.side},
                                  static_cast<std::int64_t>(each.density * static_cast<double>(cells)),
                                  0,
                                  {},
                                  Miss::none});
    SCOPED_TRACE(to_string(p));
    const double us = predicted_us("sm90_expanded", p, h100);
    EXPECT_LE(us, 1.3 * each.us);
    EXPECT_GE(us, each.us / 1.3);
  }
}

// On an H100, bf16 16 x 4096 x 14336, pruned masks with hubs (group `masks`): what is chosen of the rows that
// take uneven block rows, and what each took.
TEST(Predictions, OfPrunedMasksAtSixteenTokensOnAnH100) {
  plan::Machine h100 = kH200;
  h100.cuda.memory_bytes = 3.35e12;
  struct Mask {
    double density;
    std::vector<Timed> timed;
  };
  for (const Mask& each :
       {Mask{0.1, {{"sm80_decode", 13.9}, {"sm90_shares", 15.04}, {"sm90_expanded", 22.96}}},
        Mask{0.25, {{"sm80_decode", 17.21}, {"sm90_expanded", 25.69}, {"sm90_shares", 27.09}}},
        Mask{0.5, {{"sm80_decode", 25.98}, {"sm90_expanded", 35.17}, {"sm90_shares", 48.42}}}}) {
    const auto blocks = static_cast<std::int64_t>(each.density * (14336 / 32) * (4096 / 32));
    Problem p =
        problem_of({Direction::forward, DType::bf16, 16, 14336, 4096, {32, 32}, blocks, 0, {}, Miss::none});
    p.facts = {true, true, Longest::nine, Longest::chance, false};
    SCOPED_TRACE(to_string(p));
    for (const Timed& other : each.timed)
      EXPECT_LE(predicted_us("sm80_decode", p, h100), predicted_us(other.kernel, p, h100)) << other.kernel;
  }
}

// Dense baselines of the sweeps on an H100, whose W comes from memory.
TEST(Predictions, OfADenseCopyOnAnH100) {
  plan::Machine h100 = kH200;
  h100.cuda.memory_bytes = 3.35e12;
  struct Product {
    DType dtype;
    std::int64_t m, cols, rows;
    double us;
  };
  for (const Product& each : {Product{DType::bf16, 14, 4096, 14336, 42.2},
                              {DType::f16, 32, 13824, 5120, 55.5},
                              {DType::f16, 1, 1024, 16384, 13.95},
                              {DType::f16, 163, 4096, 4096, 18.8},
                              {DType::bf16, 122, 1024, 1024, 4.42},
                              {DType::f32, 1, 4096, 1024, 7.96},
                              {DType::f32, 2, 3000, 5000, 29.9}}) {
    Problem p;
    p.direction = Direction::forward, p.dtype = each.dtype, p.m = each.m, p.device = 0, p.can_gemm = true;
    p.rows = each.rows, p.cols = each.cols, p.block = {16, 16}, p.blocks = 100;
    SCOPED_TRACE(to_string(p));
    EXPECT_LE(kernels::dense::copy_us(p, h100), 1.3 * each.us);
    EXPECT_GE(kernels::dense::copy_us(p, h100), each.us / 1.3);
  }
}

// A topology on the device has unknown facts, and is predicted as blocks at random.
TEST(Predictions, TakeUnknownFactsForChance) {
  for (const Record& record : kRecords) {
    Problem p = problem_of(record);
    p.facts = {};
    const double unknown = predicted_us(record.timed.front().kernel, p);
    p.facts = {true, false, Longest::chance, Longest::chance, false};
    EXPECT_EQ(unknown, predicted_us(record.timed.front().kernel, p));
  }
}

TEST(Predictions, GrowWithTheLongestBlockRow) {
  Problem p = problem_of({Direction::forward, DType::bf16, 48, 4096, 4096, {64, 64}, 400, 0, {}, Miss::none});
  p.facts = {true, false, Longest::even, Longest::chance, false};
  const double even = predicted_us("sm80_decode", p);
  p.facts = {true, true, Longest::nine, Longest::chance, false};
  EXPECT_GT(predicted_us("sm80_decode", p), 1.2 * even);
}

}  // namespace
}  // namespace sparseloom::testing
