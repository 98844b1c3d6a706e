// The predictions of the CUDA rows against what an H200 took for problems of the sweeps. They need no GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "kernels/bsr_linear/cuda/rows.h"
#include "kernels/bsr_linear/dense/predict.h"
#include "kernels/bsr_linear/verb.h"

namespace sparseloom::testing {
namespace {

const plan::Machine kH200{
    runtime::Isa::generic, {}, {90, 132, 60u << 20, 227u << 10, 1.98e9, 4.8e12}, {}, {132, 66, 32, 16}};

struct Timed {
  const char* kernel;
  double us;
};

/// What is known to be wrong of a record: the choice by predicted times, the predicted time, or both.
enum class Miss { none, choice, time, both };

/// A record of bench/results/h200/sweep-*.json whose candidates were all timed; the fastest come first.
struct Record {
  Direction direction;
  DType dtype;
  std::int64_t m, rows, cols;
  BlockShape block;
  std::int64_t blocks, digest;
  std::vector<Timed> timed;
  Miss miss = Miss::none;
};

const std::vector<Record> kRecords = {
    {Direction::dw,
     DType::f16,
     307,
     1024,
     4096,
     {16, 16},
     7736,
     116,
     {{"dense", 14.44}, {"sm80_mma", 22.1}, {"sm90_wgmma_narrow", 37.71}, {"sm90_wgmma", 37.81}}},
    {Direction::dw,
     DType::f32,
     5,
     4096,
     4096,
     {128, 128},
     375,
     47,
     {{"sm80_ffma", 14.6}, {"sm90_split", 22.91}, {"dense", 47.41}}},
    {Direction::dw,
     DType::f32,
     31677,
     5120,
     13824,
     {128, 128},
     2830,
     116,
     {{"sm90_split", 27000.68}, {"sm80_ffma", 67827.04}, {"dense", 82561.84}}},
    {Direction::dw,
     DType::f16,
     1,
     13824,
     5120,
     {128, 128},
     1901,
     16,
     {{"sm90_wgmma", 31.17}, {"sm90_wgmma_narrow", 34.45}, {"sm80_mma", 65.27}, {"dense", 145.89}},
     Miss::time},
    {Direction::dw,
     DType::f16,
     152,
     768,
     2048,
     {64, 64},
     144,
     102,
     {{"sm90_wgmma_narrow", 6.23}, {"sm90_wgmma", 7.16}, {"dense", 8.84}, {"sm80_mma", 10.26}}},
    {Direction::dx,
     DType::bf16,
     525,
     1280,
     5120,
     {64, 32},
     1836,
     18,
     {{"dense", 20.84}, {"sm90_wgmma_narrow", 21.28}, {"sm90_wgmma", 22.88}, {"sm80_mma", 39.28}}},
    {Direction::dx,
     DType::f16,
     6,
     1600,
     6400,
     {16, 16},
     5234,
     18,
     {{"sm80_decode", 4.44},
      {"sm90_mma", 12.55},
      {"sm80_mma", 14.29},
      {"dense", 14.37},
      {"sm90_wgmma_merged_narrow", 24.98},
      {"sm90_wgmma_merged", 30.66}}},
    {Direction::dx,
     DType::f32,
     198,
     1024,
     1024,
     {32, 32},
     32,
     2,
     {{"sm80_ffma", 4.35}, {"sm90_split_narrow", 10.06}, {"sm90_split", 11.73}, {"dense", 24.71}}},
    {Direction::dx,
     DType::bf16,
     339,
     3072,
     768,
     {16, 16},
     568,
     100,
     {{"sm80_mma", 5.87},
      {"sm90_wgmma_merged_narrow", 10.34},
      {"dense", 11.81},
      {"sm90_wgmma_merged", 14.56},
      {"sm90_mma", 14.74}},
     Miss::time},
    {Direction::dx,
     DType::bf16,
     515,
     1600,
     6400,
     {16, 16},
     2235,
     16,
     {{"sm90_mma", 10.18},
      {"sm80_mma", 25.34},
      {"dense", 26.59},
      {"sm90_wgmma_merged_narrow", 27.29},
      {"sm90_wgmma_merged", 31.13}}},
    {Direction::dx,
     DType::f32,
     482,
     1280,
     5120,
     {64, 64},
     145,
     19,
     {{"sm90_split", 29.92}, {"sm90_split_narrow", 31.68}, {"sm80_ffma", 46.83}, {"dense", 181.01}},
     Miss::choice},
    {Direction::dx,
     DType::f32,
     2327,
     5120,
     1280,
     {128, 64},
     101,
     16,
     {{"sm90_split_narrow", 78.01}, {"sm90_split", 92.72}, {"sm80_ffma", 174.07}, {"dense", 659.18}}},
    {Direction::dx,
     DType::f16,
     7509,
     4800,
     1600,
     {64, 64},
     63,
     16,
     {{"sm90_wgmma", 27.5}, {"sm90_wgmma_narrow", 29.69}, {"sm80_mma", 44.42}, {"dense", 148.16}}},
    {Direction::dx,
     DType::f16,
     17470,
     13824,
     5120,
     {16, 16},
     40716,
     116,
     {{"sm90_wgmma_merged", 745.89},
      {"sm90_wgmma_merged_narrow", 1198.19},
      {"dense", 2764.77},
      {"sm90_mma", 3162.39},
      {"sm80_mma", 3412.29}}},
    {Direction::dx,
     DType::bf16,
     616,
     1600,
     6400,
     {16, 16},
     4280,
     102,
     {{"sm90_wgmma_merged_narrow", 15.12},
      {"sm90_wgmma_merged", 18.55},
      {"sm90_mma", 22.13},
      {"dense", 28.97},
      {"sm80_mma", 29.25}},
     Miss::both},
    {Direction::dx,
     DType::f16,
     936,
     1024,
     1024,
     {32, 32},
     676,
     16,
     {{"sm90_wgmma_narrow", 8.89}, {"dense", 10.69}, {"sm80_mma", 15.11}, {"sm90_wgmma", 15.13}},
     Miss::choice},
    {Direction::forward,
     DType::bf16,
     21816,
     768,
     3072,
     {16, 16},
     5968,
     116,
     {{"dense", 129.86},
      {"sm90_wgmma_merged", 144.51},
      {"sm90_wgmma_merged_narrow", 194.38},
      {"sm90_mma", 356.85},
      {"sm80_mma", 485.92}}},
    {Direction::forward,
     DType::f32,
     4,
     16384,
     1024,
     {128, 128},
     42,
     17,
     {{"sm80_decode", 5.49},
      {"sm80_ffma", 10.66},
      {"sm90_split_narrow", 40.48},
      {"sm90_split", 41.94},
      {"dense", 55.33}}},
    {Direction::forward,
     DType::bf16,
     36,
     16384,
     1024,
     {16, 16},
     38716,
     18,
     {{"sm80_decode_staged", 16.05},
      {"sm90_decode", 19.66},
      {"dense", 24.37},
      {"sm90_mma", 25.17},
      {"sm80_decode", 38.53},
      {"sm90_wgmma_merged_narrow", 38.58}}},
    {Direction::forward,
     DType::f32,
     325,
     1280,
     1280,
     {32, 128},
     14,
     17,
     {{"sm80_ffma", 9.02}, {"sm90_split_narrow", 16.92}, {"sm90_split", 19.89}, {"dense", 43.69}}},
    {Direction::forward,
     DType::bf16,
     64,
     14336,
     4096,
     {32, 32},
     2662,
     19,
     {{"sm80_mma", 8.91},
      {"sm80_decode", 9.28},
      {"sm90_wgmma_narrow", 10.26},
      {"sm90_wgmma", 16.33},
      {"sm90_decode", 19.84},
      {"dense", 71.44}},
     Miss::time},
    {Direction::forward,
     DType::f16,
     90,
     1280,
     1280,
     {16, 16},
     1258,
     19,
     {{"sm90_decode", 7.91},
      {"sm80_mma", 8.43},
      {"dense", 8.87},
      {"sm90_mma", 13.01},
      {"sm90_wgmma_merged_narrow", 14.49},
      {"sm90_wgmma_merged", 21.79}},
     Miss::choice},
    {Direction::forward,
     DType::f16,
     24,
     1024,
     4096,
     {16, 16},
     4784,
     18,
     {{"sm90_decode_lines", 4.95},
      {"sm80_decode", 5.25},
      {"sm90_decode", 7.99},
      {"sm80_decode_staged", 12.12},
      {"dense", 12.95},
      {"sm80_mma", 20.06}}},
    {Direction::forward,
     DType::f16,
     169,
     14336,
     4096,
     {16, 16},
     65242,
     18,
     {{"sm90_mma", 43.25},
      {"sm90_decode", 75.5},
      {"dense", 80.25},
      {"sm90_wgmma_merged", 97.17},
      {"sm80_mma", 103.05},
      {"sm90_wgmma_merged_narrow", 146.75}}},
    {Direction::forward,
     DType::f32,
     36831,
     2304,
     768,
     {128, 128},
     18,
     2,
     {{"sm90_split", 264.96}, {"sm90_split_narrow", 320.91}, {"sm80_ffma", 609.28}, {"dense", 2576.7}}},
    {Direction::forward,
     DType::f32,
     1280,
     4096,
     4096,
     {32, 32},
     2104,
     100,
     {{"sm90_split_narrow", 83.97}, {"sm90_split", 88.51}, {"sm80_ffma", 175.41}, {"dense", 977.02}},
     Miss::choice},
    {Direction::forward,
     DType::f16,
     19145,
     3072,
     1024,
     {64, 64},
     309,
     19,
     {{"sm90_wgmma", 90.6}, {"sm90_wgmma_narrow", 115.24}, {"dense", 159.19}, {"sm80_mma", 241.31}}},
    {Direction::forward,
     DType::f16,
     13836,
     1024,
     16384,
     {16, 16},
     8896,
     102,
     {{"sm90_wgmma_merged", 239.62},
      {"sm90_wgmma_merged_narrow", 317.3},
      {"sm90_mma", 407.89},
      {"sm80_mma", 502.64},
      {"dense", 517.05}}},
    {Direction::forward,
     DType::bf16,
     318,
     5120,
     5120,
     {16, 16},
     15670,
     116,
     {{"sm90_wgmma_merged_narrow", 23.08},
      {"sm90_wgmma_merged", 26.34},
      {"sm80_mma", 42.34},
      {"dense", 45.37},
      {"sm90_mma", 62.5}}},
    {Direction::forward,
     DType::f16,
     88,
     1024,
     1024,
     {32, 32},
     383,
     19,
     {{"sm90_wgmma_narrow", 7.36}, {"sm80_mma", 7.44}, {"dense", 8.18}, {"sm90_wgmma", 12.48}}},
};

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

// Pruned masks of 4096 x 14336 on an H100.
TEST(Predictions, OfExpandedBlocksOnAnH100) {
  plan::Machine h100 = kH200;
  h100.cuda.memory_bytes = 3.35e12;
  struct Product {
    Direction direction;
    std::int64_t m;
    int side;
    double density, us;
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
                              {kDx, 512, 16, 0.5, 139.5}}) {
    const auto cells = std::int64_t{14336} * 4096 / (each.side * each.side);
    const Problem p = problem_of({each.direction,
                                  DType::bf16,
                                  each.m,
                                  14336,
                                  4096,
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
