// The public calls for BsrMatrix, which owns its index and values.
#include "core/check.h"
#include "sparseloom/ops.h"

namespace sparseloom {

namespace {

void require_cpu(const char* op, const Executor& executor) {
  if (executor.device >= 0)
    core::fail(op, "a CPU executor: BsrMatrix keeps its index and values in host memory",
               "cuda:" + std::to_string(executor.device),
               "copy index and values to the device and pass an IndexView of them");
}

}  // namespace

Problem describe(const BsrMatrix& w, Direction direction, std::int64_t m) {
  Problem problem = describe(w.index().view(), w.dtype(), direction, m);
  problem.facts = facts_of(w.index().view());
  return problem;
}

ScaledProblem describe_scaled(const BsrMatrix& w, DType out, std::int64_t m) {
  ScaledProblem problem = describe_scaled(w.index().view(), w.dtype(), out, m);
  problem.facts = facts_of(w.index().view());
  return problem;
}

std::shared_ptr<const Plan> make_plan(const Problem& problem, const BsrMatrix& w, const Executor& executor,
                                      const std::string& kernel) {
  require_cpu("plan", executor);
  return make_plan(problem, w.index().view(), executor, kernel);
}

std::shared_ptr<const ScaledPlan> make_plan(const ScaledProblem& problem, const BsrMatrix& w,
                                            const Executor& executor, const std::string& kernel) {
  require_cpu("plan", executor);
  return make_plan(problem, w.index().view(), executor, kernel);
}

void linear(const Plan& plan, const ConstMatrixView& x, const BsrMatrix& w, const Addends& addends,
            const MatrixView& y, Workspace& workspace, const Executor& executor) {
  require_cpu("linear", executor);
  linear(plan, x, w.index().view(), w.values(), addends, y, workspace.at_least(plan.workspace_bytes),
         executor);
}

void linear(const ScaledPlan& plan, const ConstMatrixView& x, const BsrMatrix& w, const Scales& scales,
            const void* bias, const MatrixView& y, Workspace& workspace, const Executor& executor) {
  require_cpu("linear", executor);
  linear(plan, x, w.index().view(), w.values(), scales, bias, y, workspace.at_least(plan.workspace_bytes),
         executor);
}

void linear_dx(const Plan& plan, const ConstMatrixView& dy, const BsrMatrix& w, const MatrixView& dx,
               Workspace& workspace, const Executor& executor) {
  require_cpu("linear_dx", executor);
  linear_dx(plan, dy, w.index().view(), w.index().transposed(), w.values(), dx,
            workspace.at_least(plan.workspace_bytes), executor);
}

void linear_dw(const Plan& plan, const ConstMatrixView& dy, const ConstMatrixView& x, BsrMatrix& dw,
               Workspace& workspace, const Executor& executor) {
  require_cpu("linear_dw", executor);
  const bool accumulate = plan.problem.accumulate;
  const DType dtype = accumulate ? DType::f32 : plan.problem.dtype;
  if (dw.dtype() != dtype)
    core::fail("linear_dw",
               accumulate ? std::string("dw of dtype f32, which accumulate adds to")
                          : std::string("dw of the plan's dtype ") + name_of(dtype),
               name_of(dw.dtype()),
               accumulate ? "make it with BsrMatrix(w.index(), DType::f32)"
                          : "make it with BsrMatrix(w.index(), w.dtype())");
  linear_dw(plan, dy, x, dw.index().view(), dw.values(), workspace.at_least(plan.workspace_bytes), executor);
}

}  // namespace sparseloom
