// The products of tiles on the CPU, by every row that does not refuse, on numbers whose sums are exact.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "core/backwards.h"
#include "kernels/case.h"
#include "kernels/long_sums.h"
#include "kernels/runs.h"
#include "kernels/tiles_case.h"
#include "sparseloom/tiles_linear.h"

namespace sparseloom::testing {
namespace {

TilesLinear::Problem problem_of(const TilesOperands& o) {
  TilesLinear::Problem problem = TilesLinear::describe(o.w, o.c.direction, o.dtype, o.c.m);
  problem.bias = problem.residual = o.c.epilogue;
  problem.activation = o.c.epilogue ? Activation::relu : Activation::none;
  return problem;
}

std::vector<std::string> runnable(const TilesOperands& o) {
  std::vector<std::string> names;
  for (const Candidate& each : TilesLinear::plan(problem_of(o), Executor::serial(), "reference")->candidates)
    if (each.refusal.empty()) names.push_back(each.kernel);
  return names;
}

std::int64_t runs_of(const std::string& kernel) {
  for (const auto& [name, times] : kernels::kernel_runs())
    if (name == kernel) return times;
  return 0;
}

Matrix run(const TilesOperands& o, const std::string& kernel, const Executor& executor) {
  const auto plan = TilesLinear::plan(problem_of(o), executor, kernel);
  Matrix out(o.dtype, o.c.m, o.c.outputs(), 2);
  MatmulArgs args;
  args.a = o.x.data(), args.a_stride = o.c.depth(), args.values = o.values.data();
  if (o.c.epilogue) {
    args.bias = o.bias.data();
    args.residual = o.residual.data(), args.residual_stride = o.c.rows;
  }
  args.out = out.data(), args.out_stride = out.stride;
  Scratch workspace(plan->workspace_bytes);
  calling([&] { return kernel + " of tiles"; });
  const std::int64_t before = runs_of(kernel);
  TilesLinear::run(*plan, args, o.w, workspace.span(), executor);
  EXPECT_TRUE(out.padding_untouched()) << kernel << " wrote outside the output";
  EXPECT_FALSE(workspace.overrun()) << kernel << " overran its workspace";
  // BSR's row `reference` counts its runs, LinearOf's rows do not.
  if (kernel != "reference" && kernel != "dense") {
    EXPECT_EQ(runs_of(kernel), before + 1) << kernel;
  }
  return out;
}

void expect_exact(const TilesOperands& o) {
  SCOPED_TRACE(std::string(name_of(o.c.direction)) + " " + name_of(o.dtype) + " " + std::to_string(o.c.m) +
               " x " + std::to_string(o.c.cols) + " x " + std::to_string(o.c.rows));
  const std::vector<double> answers = o.answers(1);
  for (const std::string& kernel : runnable(o)) {
    const Matrix out = run(o, kernel, Executor::serial());
    for (std::int64_t token = 0; token < o.c.m; ++token)
      for (std::int64_t i = 0; i < o.c.outputs(); ++i)
        ASSERT_EQ(out.at(token, i), answers[static_cast<std::size_t>(token * o.c.outputs() + i)])
            << kernel << ", token " << token << ", output " << i;
    EXPECT_EQ(out.bytes, run(o, kernel, backwards(3)).bytes) << kernel;
  }
}

TEST(TilesProducts, WriteTheAnswer) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (TilesCase each : {TilesCase{64, 256, 256, 64, .4, .5},
                           {33, 512, 512, 128, .4, .5, true},
                           {1, 192, 320, 64, .1, .2},
                           {1, 203, 325, 64, .4, .5, true},
                           {2, 203, 325, 64, .4, .5},
                           {3, 321, 264, 128, .4, .5},
                           {50, 203, 325, 64, .3, .3, true},
                           {130, 321, 523, 128, .5, .3},
                           {17, 128, 64, 64, 0, .5},
                           {8, 65, 1, 64, .5, .5},
                           {16, 1, 130, 128, .3, .7},
                           {5, 640, 256, 64, 0, 0}})
      for (const Direction direction : {Direction::forward, Direction::dx}) {
        each.direction = direction;
        if (direction == Direction::dx) each.epilogue = false;
        expect_exact({dtype, each});
      }
}

// Several K tiles, between which sums pass through memory (panel_memory.h).
TEST(TilesProducts, WriteTheAnswerOfDeepW) {
  for (const Direction direction : {Direction::forward, Direction::dx})
    expect_exact({DType::f32, direction == Direction::forward
                                  ? TilesCase{77, 4096, 128, 64, .5, .5}
                                  : TilesCase{77, 128, 4096, 64, .5, .5, false, direction}});
}

// A NaN in x reaches the outputs whose rows store its column, whatever lies between the stored elements.
TEST(TilesProducts, KeepNanToWhatIsStored) {
  for (const std::int64_t m : {1, 2, 24}) {
    TilesOperands o(DType::f32, {m, 192, 128, 64, 0, .9});
    store(DType::f32, o.x.data(), 70, NAN);
    for (const std::string& kernel : runnable(o)) {
      const Matrix out = run(o, kernel, Executor::serial());
      for (std::int64_t row = 0; row < o.c.rows; ++row) {
        bool stored = false;
        Tiles::for_each_in_row(o.w, row, [&](std::int64_t col, std::int64_t) { stored |= col == 70; });
        EXPECT_EQ(std::isnan(out.at(0, row)), stored) << kernel << ", " << m << " tokens, output " << row;
      }
    }
  }
}

TEST(TilesProducts, AddLongRowsInShortChains) {
  for (const std::int64_t m : {1, 24}) {
    TilesOperands o(DType::f32, {m, 131072, 64, 64, .4, .5});
    core::Rng rng(7);
    for (std::vector<std::byte>* data : {&o.values, &o.x})
      for (std::int64_t i = 0; i < std::ssize(*data) / 4; ++i)
        store(DType::f32, data->data(), i, 2 * rng.uniform() - 1);
    for (const std::string& kernel : runnable(o)) {
      if (kernel == "reference") continue;
      const Matrix out = run(o, kernel, Executor::serial());
      LongSums sums;
      for (std::int64_t row = 0; row < 64; ++row) {
        std::vector<std::pair<std::int64_t, std::int64_t>> stored;
        Tiles::for_each_in_row(o.w, row,
                               [&](std::int64_t col, std::int64_t slot) { stored.emplace_back(col, slot); });
        for (std::int64_t t = 0; t < m; ++t)
          sums.add(out.at(t, row), std::ssize(stored), [&](std::int64_t i) {
            const auto& [col, slot] = stored[static_cast<std::size_t>(i)];
            return std::pair{load(DType::f32, o.x.data(), t * o.w.cols + col),
                             load(DType::f32, o.values.data(), slot)};
          });
      }
      sums.expect_short_chains(kernel + " of " + std::to_string(m) + " tokens");
    }
  }
}

}  // namespace
}  // namespace sparseloom::testing
