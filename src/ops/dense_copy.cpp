#include "ops/dense_copy.h"

#include <algorithm>

#include "kernels/bsr_linear/dense/predict.h"
#include "ops/gemm_rate.h"
#include "ops/machine.h"

namespace sparseloom::ops {

std::optional<double> dense_copy_us(const Plan& plan, const Executor& executor) {
  const auto row = std::find_if(plan.candidates.begin(), plan.candidates.end(),
                                [](const Candidate& each) { return each.kernel == "dense"; });
  if (row == plan.candidates.end() || !row->refusal.empty()) return std::nullopt;
  plan::Machine machine = known_machine(executor).machine;
  // The plan measured this rate, or its row would have refused.
  if (plan.problem.device < 0) machine.rates.gemm_flops = gemm_rate(plan.problem, executor);
  return kernels::dense::product_us(plan.problem, machine);
}

}  // namespace sparseloom::ops
