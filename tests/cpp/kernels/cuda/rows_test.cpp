// The CUDA rows as a plan asks them on a Hopper GPU: what they refuse, and that some row is left for every
// problem. They need no GPU.
#include "kernels/bsr_linear/cuda/rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "kernels/bsr_linear/verb.h"
#include "ops/rows.h"

namespace sparseloom::testing {
namespace {

const plan::Machine kHopper{
    runtime::Isa::generic, {}, {90, 132, 50u << 20, 227u << 10, 2e9, 4.8e12}, {}, {132, 66, 32, 16}};

template <class V>
std::vector<const kernels::OwnRow<V>*> takers_of(std::span<const kernels::OwnRow<V>> all,
                                                 const typename V::Problem& problem) {
  std::vector<const kernels::OwnRow<V>*> rows;
  for (const kernels::OwnRow<V>& kernel : all)
    if (kernels::bsr_linear::ask(kernel, problem, kHopper).refusal.empty()) rows.push_back(&kernel);
  return rows;
}
auto takers(const Problem& problem) { return takers_of(kernels::cuda_kernels(), problem); }
auto takers(const ScaledProblem& problem) { return takers_of(kernels::cuda_scaled_kernels(), problem); }

template <class V>
bool needs_aligned(const Row<V>& row, const typename V::Problem& problem) {
  return row.traits.alignment_of(problem) != kernels::Aligned::none;
}

Problem problem_of(Direction direction, DType dtype, std::int64_t m) {
  Problem p;
  p.direction = direction, p.dtype = dtype, p.m = m, p.device = 0;
  p.rows = 1024, p.cols = 2048, p.block = {64, 64}, p.blocks = 128;
  return p;
}

/// Each direction and dtype that a GPU has, with and without its numeric options.
std::vector<Problem> products(std::int64_t m) {
  std::vector<Problem> list;
  for (const Direction direction : {Direction::forward, Direction::dx, Direction::dw})
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      Problem p = problem_of(direction, dtype, m);
      list.push_back(p);
      p.tf32 = dtype == DType::f32;
      if (p.tf32) list.push_back(p);
      p.accumulate = direction == Direction::dw;
      if (p.accumulate) list.push_back(p);
      p.residual = direction == Direction::forward;
      if (p.residual) list.push_back(p);
    }
  return list;
}

std::vector<ScaledProblem> scaled_products(std::int64_t m) {
  ScaledProblem p;
  static_cast<CommonProblem&>(p) = problem_of(Direction::forward, DType::f8e4m3, m);
  p.out = DType::bf16;
  ScaledProblem fast = p;
  fast.fast_accum = true, fast.out = DType::f32;
  return {p, fast};
}

template <class Problems>
void expect_takers(Problems products) {
  for (auto p : products)
    for (const std::int32_t bm : {8, 16, 32, 64, 128})
      for (const std::int32_t bn : {8, 16, 32, 64, 128})
        for (const auto& [rows, cols] : {std::pair{1024, 2048}, {37, 61}, {8, 40000}, {200000, 16}})
          for (const double density : {0.0, 0.01, 0.5, 1.0})
            for (const bool aligned : {true, false}) {
              p.block = {bm, bn}, p.rows = rows, p.cols = cols, p.aligned = p.out_aligned = aligned;
              const std::int64_t grid = ((rows + bm - 1) / bm) * std::int64_t{(cols + bn - 1) / bn};
              p.blocks = static_cast<std::int64_t>(std::ceil(density * static_cast<double>(grid)));
              const auto rows_left = takers(p);
              ASSERT_FALSE(rows_left.empty()) << to_string(p) << " aligned " << aligned;
              for (const auto* row : rows_left) {
                ASSERT_TRUE(aligned || !needs_aligned(*row, p)) << row->name << ": " << to_string(p);
                if (p.m == 0) continue;  // nothing to multiply, and a rate of nothing has no meaning
                ASSERT_TRUE(std::isfinite(kernels::bsr_linear::ask(*row, p, kHopper).predicted_us))
                    << row->name << ": " << to_string(p);
              }
            }
}

TEST(CudaRows, SomeRowTakesEveryProblem) {
  for (const std::int64_t m : {0, 1, 8, 16, 33, 64, 65, 300, 5000}) {
    expect_takers(products(m));
    expect_takers(scaled_products(m));
  }
}

template <class V>
void expect_a_kernel(typename V::Problem p) {
  for (const bool empty : {false, true}) {
    if (empty) p.blocks = 0;
    p.aligned = empty;
    const auto plan = plan::typed<V>(p, plan::select(plan::any<V>(p), kHopper, {}));
    EXPECT_FALSE(!p.aligned && needs_aligned(*plan.chosen, p)) << plan.kernel_name << ": " << to_string(p);
    if (empty) {
      EXPECT_FALSE(plan.kernel_name.starts_with("sm90_")) << plan.kernel_name << ": " << to_string(p);
    }
  }
}

TEST(CudaRows, PlansOfMisalignedAndEmptyProblemsNameAKernelThatTakesThem) {
  ops::enter_own_rows();
  for (const std::int64_t m : {0, 16, 4096}) {
    for (const Problem& p : products(m)) expect_a_kernel<kernels::Linear>(p);
    for (const ScaledProblem& p : scaled_products(m)) expect_a_kernel<kernels::Scaled>(p);
  }
}

template <class P>
void expect_a_hopper_row(const P& p) {
  const auto rows = takers(p);
  EXPECT_TRUE(std::any_of(rows.begin(), rows.end(), [](const auto* row) {
    return std::string(row->name).starts_with("sm90_");
  })) << to_string(p);
}

TEST(CudaRows, HopperRowsTakeAlignedProblems) {
  for (const Problem& p : products(4096)) expect_a_hopper_row(p);
  for (const ScaledProblem& p : scaled_products(4096)) expect_a_hopper_row(p);
}

// A pass reads the f32 operands of dW before TMA does.
TEST(CudaRows, DwOfF32TakesAnyAlignment) {
  Problem p = problem_of(Direction::dw, DType::f32, 4096);
  p.aligned = false;
  const auto has = [&](const char* name) {
    const auto rows = takers(p);
    return std::any_of(rows.begin(), rows.end(),
                       [name](const kernels::Kernel* row) { return std::string(row->name) == name; });
  };
  EXPECT_TRUE(has("sm90_split"));
  p.tf32 = true;
  EXPECT_TRUE(has("sm90_wgmma"));
  p.m = 0;
  EXPECT_FALSE(has("sm90_wgmma") || has("sm90_split"));
}

TEST(CudaRows, HopperRowsRefuseWhatTheirCountsDoNotHold) {
  for (Problem p : products(std::int64_t{1} << 31))
    for (const kernels::Kernel* row : takers(p))
      EXPECT_FALSE(std::string(row->name).starts_with("sm90_")) << row->name << ": " << to_string(p);
  // Of bf16x3's planes there are three for each token.
  Problem p = problem_of(Direction::dw, DType::f32, std::int64_t{1} << 30);
  EXPECT_TRUE(takers(p).size() == 1);
  // Few rows and columns, but too many tiles.
  p = problem_of(Direction::forward, DType::bf16, std::int64_t{1} << 30);
  p.rows = std::int64_t{1} << 20;
  for (const kernels::Kernel* row : takers(p)) EXPECT_FALSE(std::string(row->name).starts_with("sm90_"));
}

}  // namespace
}  // namespace sparseloom::testing
