// make_plan: checks the problem, looks in the cache, measures the machine and chooses a kernel.
#include <algorithm>
#include <utility>

#include "core/check.h"
#include "ops/checks.h"
#include "ops/gemm_rate.h"
#include "ops/machine.h"
#include "ops/problem.h"
#include "ops/rows.h"
#include "sparseloom/deterministic.h"
#include "sparseloom/ops.h"

namespace sparseloom {
namespace {

using bsr_linear::Linear;

// Whether to measure the lent GEMM, which costs milliseconds: only if dense could win, that is if the best
// sparse prediction is slower than the dense product at the machine's peak.
bool dense_could_win(const Problem& problem, const plan::Machine& machine, const std::string& kernel) {
  if (!problem.can_gemm || problem.strict || problem.direction == Direction::dw || problem.device >= 0)
    return false;
  if (kernel == "dense") return true;
  if (!kernel.empty()) return false;
  const double best = plan::select(plan::any<Linear>(problem), machine, {}).choice.predicted_us;
  const double peak = ops::peak_flops(problem.dtype, problem.threads, machine.rates);
  if (peak <= 0) return true;
  return best > 1e6 * 2.0 * static_cast<double>(problem.m) * static_cast<double>(problem.rows) *
                    static_cast<double>(problem.cols) / peak;
}

void check_problem(const Problem& problem) {
  ops::require_known("plan", problem.direction, problem.dtype, problem.activation);
  const std::string dtype = name_of(problem.dtype);
  if (is_scaled(problem.dtype) && problem.direction != Direction::forward)
    core::fail("plan", "direction forward: " + dtype + " products have no gradients",
               name_of(problem.direction), "train in f32, f16 or bf16 and quantize the trained weight");
  if (is_scaled(problem.dtype))
    core::fail("plan", "a Problem of f32, f16, bf16 or f64, or scales beside " + dtype + " operands", dtype,
               "plan a ScaledProblem (describe_scaled), and pass Scales (from torch: scaled_linear)");
  if (problem.direction != Direction::forward && (problem.bias || problem.activation != Activation::none))
    core::fail("plan", "bias and activation on forward only", name_of(problem.direction),
               "apply them in the forward product");
  if (problem.residual && problem.direction != Direction::forward)
    core::fail("plan", "a residual on forward of f32, f16, bf16 or f64 only",
               std::string(name_of(problem.direction)) + " of " + dtype, "add it in a pass of your own");
  if (problem.glu && (problem.direction != Direction::forward || problem.residual || problem.facts.moving))
    core::fail("plan", "a gated linear unit of forward, without a residual, of blocks that stay",
               std::string(name_of(problem.direction)) + (problem.residual ? " with a residual" : "") +
                   (problem.facts.moving ? " of moving blocks" : ""),
               "plan two products");
  if (problem.accumulate && (problem.direction != Direction::dw || problem.dtype == DType::f64))
    core::fail("plan", "accumulate, into fp32, on dw of f32, f16 or bf16 only",
               std::string(name_of(problem.direction)) + " of " + dtype,
               "add the product in a pass of your own");
}

// plan::settled, with the rate of the lent GEMM measured if only dense supports the problem.
std::string settled(const Problem& problem, const Executor& executor, plan::Machine machine) {
  std::string kernel = plan::settled<Linear>(problem, executor);
  if (!kernel.empty() || !dense_could_win(problem, machine, "dense")) return kernel;
  machine.rates.gemm_flops = ops::gemm_rate(problem, executor);
  const plan::Selected best = plan::select(plan::any<Linear>(problem), machine, {});
  for (const Candidate& each : best.choice.candidates)
    if (each.kernel == "dense" && each.refusal.empty()) kernel = "dense";
  return kernel;
}

// Chooses a kernel for a problem that was checked.
Plan choose(const Problem& problem, const Executor& executor, std::string kernel) {
  if (problem.device >= 0 && problem.dtype == DType::f64)
    core::fail("plan", "f32, f16 or bf16 on CUDA", "f64", "convert with .float(), or compute f64 on the CPU");
  ops::KnownMachine known = ops::known_machine(executor);
  if (is_deterministic() && executor.device < 0 && kernel.empty())
    kernel = settled(problem, executor, known.machine);
  if (dense_could_win(problem, known.machine, kernel))
    known.machine.rates.gemm_flops = ops::gemm_rate(problem, executor);
  Plan chosen = plan::typed<Linear>(problem, plan::select(plan::any<Linear>(problem), known.machine, kernel));
  chosen.machine = std::move(known.line);
  return chosen;
}

}  // namespace

Problem describe(const IndexView& index, DType dtype, Direction direction, std::int64_t m) {
  Problem problem;
  problem.direction = direction;
  ops::describe_index(index, dtype, m, problem);
  // The matrices [m, cols] and [m, rows] with nothing between their rows.
  const auto aligned = [&](std::int64_t features) { return ops::packed_is_aligned(dtype, m, features); };
  switch (direction) {
    case Direction::forward:
      problem.aligned = aligned(index.cols), problem.out_aligned = aligned(index.rows);
      break;
    case Direction::dx:
      problem.aligned = aligned(index.rows), problem.out_aligned = aligned(index.cols);
      break;
    case Direction::dw: problem.aligned = aligned(index.rows) && aligned(index.cols); break;
  }
  return problem;
}

std::shared_ptr<const Plan> make_plan(const Problem& given, const IndexView& index, const Executor& executor,
                                      const std::string& kernel) {
  // Complete the problem, which is part of the cache key, from the executor.
  Problem problem = given;
  problem.can_gemm = executor.gemm != nullptr;
  // Ignore these flags if they have no effect, so that there is one plan and not two.
  problem.tf32 = given.tf32 && executor.device >= 0 && problem.dtype == DType::f32;
  if (problem.direction == Direction::dw) problem.out_aligned = true;  // dvalues count as read
  ops::complete(problem, index, executor);
  check_problem(problem);
  ops::require_valid(problem, index);
  const auto make = [&] { return choose(problem, executor, kernel); };
  const bool settled = is_deterministic() && kernel.empty();
  return plan::cached_as<Plan>(Linear::kName, Linear::key(problem), settled ? plan::kDeterministic : kernel,
                               make);
}

std::vector<std::string> kernel_names() {
  std::vector<std::string> names;
  for (const ops::Listed& row : ops::listed_kernels()) names.emplace_back(row.name);
  return names;
}

}  // namespace sparseloom
