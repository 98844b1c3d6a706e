// The 8-bit product of 2:4 weights: its verb, its plan, and its call.
#include "sparseloom/semi24_scaled.h"

#include <algorithm>

#include "core/check.h"
#include "ops/eight_bit.h"
#include "ops/rows.h"

namespace sparseloom {
namespace {

void check(const Semi24ScaledProblem& p) {
  const std::string dtype = name_of(p.dtype);
  if (!is_scaled(p.dtype))
    core::fail("plan", "operands of i8 or f8e4m3", dtype, "plan a Semi24Linear, which takes no scales");
  ops::require_out_of_8_bits(p.dtype, p.out, "Semi24ScaledProblem");
  if (p.direction != Direction::forward || p.residual)
    core::fail("plan", "a forward product without a residual for " + dtype + " operands",
               std::string(name_of(p.direction)) + (p.residual ? " with a residual" : ""),
               "add the residual to the result; gradients need a layer of 16 bits");
  if (const std::int64_t stored = 2 * ((p.cols + 3) / 4); p.dtype == DType::i8 && stored > ops::kInt8Products)
    core::fail("plan",
               "at most " + std::to_string(ops::kInt8Products) +
                   " stored int8 elements of an output, whose sums fit int32",
               std::to_string(stored), "split the layer along its inputs, or use bf16");
}

}  // namespace

ProblemKey Semi24Scaled::key(const Problem& p) {
  ProblemKey key = Semi24Linear::key(p);
  key.back() = static_cast<std::uint64_t>(p.out) | static_cast<std::uint64_t>(p.fast_accum) << 8;
  return key;
}

std::string Semi24Scaled::print(const Problem& p) {
  return Semi24Linear::print(p) + " out=" + name_of(p.out) + (p.fast_accum ? " fast_accum" : "");
}

Semi24ScaledProblem Semi24Scaled::describe(const Semi24View& view, DType dtype, DType out, std::int64_t m) {
  Problem problem{Semi24Linear::describe(view, Direction::forward, dtype, m)};
  problem.out = out;
  return problem;
}

std::shared_ptr<const Semi24Scaled::Plan> Semi24Scaled::plan(Problem problem, const Executor& executor,
                                                             std::string_view forced) {
  ops::enter_own_rows();
  require_linear_problem(kName, problem);
  check(problem);
  problem.device = executor.device;
  problem.threads = std::max(1, executor.num_threads);
  problem.fast_accum = problem.fast_accum && problem.device >= 0 && problem.dtype == DType::f8e4m3;
  return plan_for<Semi24Scaled>(problem, executor, forced);
}

void Semi24Scaled::run(const Plan& plan, MatmulArgs product, const Semi24View& view,
                       std::span<std::byte> workspace, const Executor& executor) {
  const Problem& p = plan.problem;
  if (view.rows != p.rows || view.cols != p.cols)
    core::fail(kName, "the index that was planned: " + print(p), core::shape(view.rows, view.cols),
               "plan again for this index");
  if (p.m == 0 || p.rows == 0) return;  // before bias and scales are checked, since empty ones may be null
  if ((product.bias != nullptr) != p.bias || product.residual != nullptr)
    core::fail(kName, "a bias as planned and no residual: " + print(p), "other operands",
               "plan for what the call passes");
  if (product.a_scale == nullptr || product.w_scale == nullptr)
    core::fail(kName, "scales of x and of the weight", "a null pointer", "pass one factor, or one for each");
  if (!Semi24::has_memory(view))
    core::fail(kName, "memory behind the index", "a null pointer", "pass its arrays");
  product.out_dtype = p.out, product.fast_accum = p.fast_accum;
  launch_linear<Semi24Scaled>(plan, product, view, workspace, executor);
}

}  // namespace sparseloom
