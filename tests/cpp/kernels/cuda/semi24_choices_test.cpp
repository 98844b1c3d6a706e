// Which kernel and tile the plans of 2:4 weights take for shapes that were measured. They need no GPU.
#include <gtest/gtest.h>

#include <cstring>
#include <span>
#include <string>

#include "kernels/generic/predict_dense.h"
#include "kernels/semi24_linear/rows.h"
#include "kernels/semi24_linear/sm90/forward_wgmma/entry.h"

namespace sparseloom::testing {
namespace {

const plan::Machine kH200{
    runtime::Isa::generic, {}, {90, 132, 60u << 20, 227u << 10, 1.98e9, 4.8e12}, {}, {132, 66, 32, 16}};
const plan::Machine kA100{
    runtime::Isa::generic, {}, {80, 108, 40u << 20, 163u << 10, 1.41e9, 1.55e12}, {}, {108, 0, 0, 0}};

struct Choice {
  std::string kernel = "none";
  int variant = 0;
  double us = 0;
};

/// Of these rows, the one of the least predicted time, as plan::select takes it.
template <class V>
Choice chosen(std::span<const Row<V>> rows, const typename V::Problem& p, const plan::Machine& machine) {
  Choice found;
  for (const Row<V>& row : rows) {
    plan::Offer offer;
    Proposals<V> out(offer);
    static_cast<void>(row.propose(p, machine, out));
    if (!offer.made || (found.us > 0 && offer.predicted_us >= found.us)) continue;
    typename V::Schedule schedule;
    std::memcpy(&schedule, offer.schedule, sizeof schedule);
    found = {row.name, schedule.variant, offer.predicted_us};
  }
  return found;
}

LinearProblem problem_of(DType dtype, std::int64_t m, std::int64_t cols, std::int64_t rows) {
  LinearProblem p;
  p.dtype = dtype, p.m = m, p.rows = rows, p.cols = cols, p.stored = rows * ((cols + 3) / 4) * 2;
  p.device = 0, p.can_gemm = true;
  return p;
}

struct Pinned {
  std::int64_t m, cols, rows;  // tokens, in features, out features
  const char* kernel;
  int variant;  // sm90_wgmma: the tile; sm90_decode: thread blocks that share one
};

// The shapes of the H100 and H200 measurements in docs/log, bf16.
TEST(Semi24Choices, OfBf16OnAnH200) {
  for (const Pinned& each : {Pinned{8192, 4096, 4096, "sm90_wgmma", 1},
                             {8192, 4096, 16384, "sm90_wgmma", 0},
                             {50432, 768, 3072, "sm90_wgmma", 0},
                             {50432, 3072, 768, "sm90_wgmma", 0},
                             {8192, 4096, 14336, "sm90_wgmma", 0},
                             {2048, 5120, 13824, "sm90_wgmma", 0},
                             {128, 4096, 4096, "sm90_wgmma", 3},
                             {1, 4096, 14336, "sm90_decode", 1},
                             {16, 4096, 14336, "sm90_decode", 1},
                             {64, 4096, 14336, "sm90_decode", 1},
                             {32, 12288, 12288, "sm90_decode", 1},
                             {64, 4096, 4096, "sm90_decode", 2}}) {
    const Choice found =
        chosen(kernels::semi24_cuda_rows(), problem_of(DType::bf16, each.m, each.cols, each.rows), kH200);
    EXPECT_EQ(found.kernel, each.kernel) << each.m << " x " << each.cols << " x " << each.rows;
    EXPECT_EQ(found.variant, each.variant) << each.m << " x " << each.cols << " x " << each.rows;
  }
}

// What the sweep of an H100 found: the plan took dense_on_device, 15.9 us where dense alone takes 8.3, and
// sm90_wgmma takes less than the 14.4 us that it takes for 1797 tokens.
TEST(Semi24Choices, OfASmallLayerOnAnH100) {
  plan::Machine h100 = kH200;
  h100.cuda.memory_bytes = 3.35e12;
  h100.gpu = {2.93e12, 4.01e12, 638e12};
  const Choice found = chosen(kernels::semi24_cuda_rows(), problem_of(DType::f16, 452, 3072, 768), h100);
  EXPECT_EQ(found.kernel, "sm90_wgmma");
}

// Promoted e4m3 has no tile of 256 x 192: its sums take as many registers again.
TEST(Semi24Choices, OfEightBitsOnAnH200) {
  const auto pinned = [](DType dtype, bool fast, const Pinned& each) {
    ScaledLinearProblem p{problem_of(dtype, each.m, each.cols, each.rows)};
    p.out = DType::bf16, p.fast_accum = fast;
    const Choice found = chosen(kernels::semi24_scaled_cuda_rows(), p, kH200);
    EXPECT_EQ(found.kernel, each.kernel) << Semi24Scaled::print(p);
    EXPECT_EQ(found.variant, each.variant) << Semi24Scaled::print(p);
  };
  for (const Pinned& each :
       {Pinned{8192, 4096, 4096, "sm90_wgmma", 0}, {8192, 4096, 16384, "sm90_wgmma", 0}}) {
    pinned(DType::f8e4m3, true, each);
    pinned(DType::i8, false, each);
  }
  for (const Pinned& each : {Pinned{8192, 4096, 4096, "sm90_wgmma", 1}, {8192, 4096, 16384, "sm90_wgmma", 1}})
    pinned(DType::f8e4m3, false, each);
  for (const Pinned& each : {Pinned{1, 4096, 14336, "sm90_decode", 1},
                             {16, 4096, 14336, "sm90_decode", 1},
                             {64, 4096, 14336, "sm90_decode", 1},
                             {32, 12288, 12288, "sm90_decode", 1}}) {
    pinned(DType::f8e4m3, true, each);
    pinned(DType::i8, false, each);
  }
}

// What Hopper's kernels refuse: other GPUs, sizes that TMA cannot read, and many tokens in fp32.
TEST(Semi24Choices, WhereHoppersKernelsDoNotRun) {
  const auto kernel = [](const LinearProblem& p, const plan::Machine& machine) {
    return chosen(kernels::semi24_cuda_rows(), p, machine).kernel;
  };
  EXPECT_EQ(kernel(problem_of(DType::bf16, 16, 4096, 4096), kA100), "sm80_mma");
  EXPECT_EQ(kernel(problem_of(DType::f16, 16, 4100, 4096), kH200), "dense_on_device");
  EXPECT_EQ(kernel(problem_of(DType::f16, 8192, 4096, 4096), kA100), "dense_on_device");
  EXPECT_EQ(kernel(problem_of(DType::f32, 512, 4096, 4096), kH200), "dense_on_device");
}

TEST(Semi24Choices, OfDxAndFp32) {
  const auto dx_of = [](DType dtype, std::int64_t m, std::int64_t cols, std::int64_t rows) {
    LinearProblem p = problem_of(dtype, m, cols, rows);
    p.direction = Direction::dx;
    return p;
  };
  const auto kernel = [](const LinearProblem& p, const plan::Machine& machine) {
    return chosen(kernels::semi24_cuda_rows(), p, machine).kernel;
  };
  EXPECT_EQ(kernel(dx_of(DType::bf16, 4, 768, 3072), kH200), "sm90_dx");
  EXPECT_EQ(kernel(dx_of(DType::f16, 64, 4096, 4096), kH200), "sm90_dx");
  EXPECT_EQ(kernel(dx_of(DType::bf16, 16384, 8192, 8192), kH200), "dense_on_device");
  EXPECT_EQ(kernel(dx_of(DType::bf16, 64, 4096, 4096), kA100), "dense_on_device");
  EXPECT_EQ(kernel(dx_of(DType::f32, 1, 5120, 5120), kH200), "sm80_ffma");
  EXPECT_EQ(kernel(dx_of(DType::f32, 249, 5120, 5120), kH200), "dense_on_device");
  EXPECT_EQ(kernel(problem_of(DType::f32, 1, 14336, 4096), kH200), "sm80_ffma");
  EXPECT_EQ(kernel(problem_of(DType::f32, 1, 14336, 4096), kA100), "sm80_ffma");
  // In features that are no multiple of 32, and out features that are none of 8.
  EXPECT_EQ(kernel(dx_of(DType::bf16, 16, 4112, 4096), kH200), "dense_on_device");
  LinearProblem alone = dx_of(DType::bf16, 16, 4096, 4100);
  EXPECT_EQ(kernel(alone, kH200), "dense_on_device");
  alone.can_gemm = false;
  EXPECT_EQ(kernel(alone, kH200), "none");
}

// Where the sweep of an H100 that allowed a dense copy (2026-11-27) measured dense as faster than what ran,
// and where it did not.
TEST(Semi24Choices, OfADenseCopyOnAnH100) {
  plan::Machine h100 = kH200;
  h100.cuda.l2_bytes = 50u << 20, h100.cuda.memory_bytes = 2.94e12;  // as measured there
  h100.clusters = {132, 64, 25, 13};
  struct Timed {
    DType dtype;
    std::int64_t m, cols, rows;
    bool copy_is_faster;
    Direction direction = Direction::forward;
  };
  for (const Timed& each : {Timed{DType::f16, 1, 1280, 1280, true},
                            {DType::bf16, 21, 768, 2048, true},
                            {DType::f16, 15, 1024, 3072, true},
                            {DType::f16, 33, 1024, 3072, true},
                            {DType::bf16, 2297, 777, 1333, true},
                            {DType::f32, 2, 2050, 510, true},
                            {DType::f32, 6, 1280, 5120, true},
                            {DType::f32, 6, 5120, 13824, true},
                            {DType::f32, 27481, 4096, 14336, true},
                            {DType::bf16, 5, 1024, 4096, false},
                            {DType::f16, 4, 5120, 1280, false},
                            {DType::f16, 58, 13824, 5120, false},
                            {DType::f16, 5512, 1024, 3072, false},
                            {DType::f32, 1, 4096, 4096, false},
                            {DType::f32, 8, 2048, 768, false},
                            {DType::f32, 48, 768, 768, false},
                            {DType::bf16, 1211, 6400, 1600, true, Direction::dx},
                            {DType::f16, 24342, 2050, 510, true, Direction::dx},
                            {DType::f32, 7, 1024, 1024, true, Direction::dx},
                            {DType::bf16, 4, 14336, 4096, false, Direction::dx},
                            {DType::f32, 4, 4096, 14336, false, Direction::dx}}) {
    LinearProblem p = problem_of(each.dtype, each.m, each.cols, each.rows);
    p.direction = each.direction;
    const Choice found = chosen(kernels::semi24_cuda_rows(), p, h100);
    EXPECT_EQ(kernels::dense::copy_us(p, h100) < found.us, each.copy_is_faster)
        << name_of(p.direction) << " " << name_of(p.dtype) << " " << p.m << " x " << p.cols << " x " << p.rows
        << ": " << kernels::dense::copy_us(p, h100) << " and " << found.us << " of " << found.kernel;
  }
}

}  // namespace
}  // namespace sparseloom::testing
