// The 8-bit product: its plan, and its call.
#include <string>

#include "core/check.h"
#include "ops/call.h"
#include "ops/eight_bit.h"
#include "ops/problem.h"
#include "sparseloom/ops.h"

namespace sparseloom {
namespace {

void check_problem(const ScaledProblem& problem) {
  if (!is_scaled(problem.dtype))
    core::fail("plan", "a ScaledProblem of i8 or f8e4m3", name_of(problem.dtype),
               "plan a Problem (describe), and call linear without Scales");
  ops::require_out_of_8_bits(problem.dtype, problem.out, "ScaledProblem");
  if (problem.dtype == DType::i8 && problem.cols > ops::kInt8Products)
    core::fail("plan",
               "int8 operands of at most " + std::to_string(ops::kInt8Products) +
                   " input features, whose sums fit int32",
               std::to_string(problem.cols), "split the layer along its inputs, or use bf16");
}

void check_scale(const char* name, std::span<const float> scale, std::int64_t size, const char* of) {
  const auto count = static_cast<std::int64_t>(scale.size());
  if ((count != 1 && count != size) || (count > 0 && scale.data() == nullptr))
    core::fail("linear",
               std::string(name) + " with 1 or " + std::to_string(size) + " fp32 factors, one for each " + of,
               scale.data() == nullptr ? std::to_string(count) + " at address null" : std::to_string(count),
               "pass one factor, or one for each " + std::string(of));
}

}  // namespace

ScaledProblem describe_scaled(const IndexView& index, DType dtype, DType out, std::int64_t m) {
  ScaledProblem problem;
  ops::describe_index(index, dtype, m, problem);
  problem.out = out;
  problem.aligned = ops::packed_is_aligned(dtype, m, index.cols);
  problem.out_aligned = ops::packed_is_aligned(out, m, index.rows);
  return problem;
}

std::shared_ptr<const ScaledPlan> make_plan(const ScaledProblem& given, const IndexView& index,
                                            const Executor& executor, const std::string& kernel) {
  ScaledProblem problem = given;
  problem.can_gemm = executor.scaled_gemm != nullptr;
  problem.fast_accum = given.fast_accum && executor.device >= 0 && problem.dtype == DType::f8e4m3;
  ops::complete(problem, index, executor);
  check_problem(problem);
  ops::require_valid(problem, index);
  return plan_for<bsr_linear::Scaled>(problem, executor, kernel);
}

void linear(const ScaledPlan& plan, const ConstMatrixView& x, const IndexView& index, const void* values,
            const Scales& scales, const void* bias, const MatrixView& y, std::span<std::byte> workspace,
            const Executor& executor) {
  const ScaledProblem& p = plan.problem;
  ops::check_call("linear", p, plan, index, workspace, executor);
  ops::require_lent("linear", p.can_gemm, "GEMM", executor.scaled_gemm != nullptr);
  ops::check_matrix("linear", "x", x, p.m, p.cols, p.dtype);
  ops::check_matrix("linear", "y", y, p.m, p.rows, p.out);
  if (p.m == 0 || p.rows == 0) return;  // before the bias is checked, since an empty one may be null
  ops::check_bias("linear", p, bias);
  ops::check_values("linear", "values", p, values);
  ops::check_aligned("linear", plan, values, {x}, {y});
  check_scale("x's scales", scales.x, p.m, "token");
  check_scale("w's scales", scales.w, p.rows, "output feature");
  MatmulArgs args = ops::arguments(p, index, x, workspace, executor);
  args.values = values;
  args.bias = bias;
  args.out = y.data;
  args.out_stride = ops::row_distance(y);
  args.out_dtype = p.out;
  args.fast_accum = p.fast_accum;
  args.a_scale = scales.x.data(), args.a_scale_each = scales.x.size() > 1;
  args.w_scale = scales.w.data(), args.w_scale_each = scales.w.size() > 1;
  ops::launch("linear", plan, args, executor);
}

}  // namespace sparseloom
