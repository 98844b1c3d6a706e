#include "ops/dense_copy.h"

#include <algorithm>

#include "kernels/generic/predict_dense.h"
#include "ops/gemm_rate.h"
#include "ops/machine.h"

namespace sparseloom::ops {
namespace {

// `dense_on_device` is the dense row that the layouts of LinearOf have on CUDA devices.
bool dense_can_run(const Choice& plan) {
  return std::any_of(plan.candidates.begin(), plan.candidates.end(), [](const Candidate& each) {
    return (each.kernel == "dense" || each.kernel == "dense_on_device") && each.refusal.empty();
  });
}

}  // namespace

std::optional<double> dense_copy_us(const Plan& plan, const Executor& executor) {
  if (!dense_can_run(plan)) return std::nullopt;
  plan::Machine machine = known_machine(executor).machine;
  // The plan measured this rate, or its row would have refused.
  if (plan.problem.device < 0) machine.rates.gemm_flops = gemm_rate(plan.problem, executor);
  return kernels::dense::copy_us(plan.problem, machine);
}

std::optional<double> dense_copy_us(const ScaledPlan& plan, const Executor& executor) {
  if (!dense_can_run(plan)) return std::nullopt;
  return kernels::dense::copy_us(plan.problem, known_machine(executor).machine);
}

std::optional<double> dense_copy_us(const Semi24Linear::Plan& plan, const Executor& executor) {
  if (!dense_can_run(plan)) return std::nullopt;
  plan::Machine machine = known_machine(executor).machine;
  if (plan.problem.device < 0) machine.rates.gemm_flops = plan.problem.rates.gemm_flops;
  return kernels::dense::copy_us(plan.problem, machine);
}

}  // namespace sparseloom::ops
