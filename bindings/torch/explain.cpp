// The operators plan, version, info, activation_names, kernel_runs and spin_registers: what would run and why, what
// this build and machine have, what ran, and what rate the CPU reaches.
#include "explain.h"

#include "convert.h"
#include "core/check.h"
#include "core/json.h"
#include "executor.h"
#include "kernels/runs.h"
#include "linear.h"
#include "operands.h"
#include "ops/dense_copy.h"
#include "ops/row_number.h"
#include "ops/spin.h"
#include "sparseloom/ops.h"
#include "sparseloom/version.h"

namespace sparseloom::binding {

using core::json_number;
using core::json_string;

Direction direction_of(const std::string& name) {
  for (Direction d : {Direction::forward, Direction::dx, Direction::dw})
    if (name == name_of(d)) return d;
  core::fail("plan", "direction 'forward', 'dx' or 'dw'", "'" + name + "'", "pass one of them");
}

DType dtype_named(const std::string& name) {
  for (DType d : {DType::f32, DType::f16, DType::bf16, DType::f64, DType::i8, DType::f8e4m3})
    if (name == name_of(d)) return d;
  core::fail("plan", "dtype 'f32', 'f16', 'bf16', 'f64', 'int8' or 'float8_e4m3fn'", "'" + name + "'",
             "pass one of them");
}

Executor planner(std::int64_t device) {
  Executor executor = torch_executor();
  if (device < 0) return executor;
  Executor on_device = Executor::cuda(static_cast<int>(device));
  on_device.gemm = executor.gemm;
  on_device.scaled_gemm = executor.scaled_gemm;
  return on_device;
}

std::string json_of(const Choice& plan, const std::optional<double>& copy_us, const std::string& text,
                    const std::optional<double>& dense_us) {
  std::string json = "{\"kernel\": " + json_string(plan.kernel_name) +
                     ", \"predicted_us\": " + json_number(plan.predicted_us) +
                     ", \"workspace_bytes\": " + std::to_string(plan.workspace_bytes) +
                     ", \"dense_copy_us\": " + (copy_us ? json_number(*copy_us) : "null") +
                     (dense_us ? ", \"dense_us\": " + json_number(*dense_us) : "") + ", \"candidates\": [";
  const char* comma = "";
  for (const Candidate& c : plan.candidates) {
    json += std::string(comma) + "{\"kernel\": " + json_string(c.kernel) +
            ", \"refusal\": " + json_string(c.refusal) +
            ", \"predicted_us\": " + (c.refusal.empty() ? json_number(c.predicted_us) : "null") + "}";
    comma = ", ";
  }
  return json + "], \"text\": " + json_string(text) + "}";
}

namespace {

std::string plan_json(const Tensor& packed, std::int64_t blocks, std::int64_t rows, std::int64_t cols,
                      std::int64_t bm, std::int64_t bn, std::string direction, std::string dtype,
                      std::int64_t m, std::int64_t device, bool bias, std::int64_t activation, bool residual,
                      std::int64_t row, bool strict, bool tf32, std::int64_t digest, bool use_fast_accum,
                      bool accumulate, bool aligned) {
  const IndexView slots = packed_of("plan", packed, blocks, rows, cols, block_of("plan", rows, cols, bm, bn));
  const IndexView index = stored_part("plan", slots, digest, static_cast<int>(device));
  // The dtype may read "int8 to bf16", as plans print it; all other dtypes write themselves.
  const std::string kTo = " to ";
  const std::size_t to = dtype.find(kTo);
  const DType operand = dtype_named(dtype.substr(0, to));
  const Direction towards = direction_of(direction);
  const Executor executor = planner(device);
  const auto plan_text = [&](auto problem) {
    problem.bias = bias;
    problem.activation = activation_of("plan", activation);
    problem.aligned = problem.aligned && aligned;
    problem.out_aligned = problem.out_aligned && aligned;
    const auto plan = make_plan(problem, index, executor, ops::row_name("plan", row));
    return json_of(*plan, ops::dense_copy_us(*plan, executor), plan->describe());
  };
  if (is_scaled(operand)) {
    if (towards != Direction::forward)
      core::fail("plan",
                 std::string("direction forward: ") + name_of(operand) + " products have no gradients",
                 direction, "train in f32, f16 or bf16 and quantize the trained weight");
    if (residual || accumulate)
      core::fail("plan", std::string("neither residual nor accumulate beside ") + name_of(operand),
                 residual ? "residual" : "accumulate", "add it in a pass of your own");
    const DType out = to != std::string::npos ? dtype_named(dtype.substr(to + kTo.size())) : DType::f32;
    ScaledProblem problem = describe_scaled(index, operand, out, m);
    problem.facts = Facts::of_digest(digest);
    problem.strict = strict;
    problem.fast_accum = use_fast_accum;
    return plan_text(problem);
  }
  Problem problem = problem_of(towards, operand, m, index, digest, strict, tf32);
  problem.residual = residual;
  problem.accumulate = accumulate;
  return plan_text(problem);
}

std::string version() { return SPARSELOOM_VERSION; }

std::string info() { return info_json(); }

std::string activation_names() {
  std::string names;
  for (const ActivationRow& row : kActivations)
    names += (names.empty() ? "" : " ") + std::string(row.torch_name);
  return names;
}

std::int64_t row_number(std::string name) { return ops::row_number(name); }

std::string kernel_runs() {
  std::string text = "{";
  for (const auto& [kernel, runs] : kernels::kernel_runs())
    text += (text.size() == 1 ? "" : ", ") + json_string(kernel) + ": " + std::to_string(runs);
  return text + "}";
}

std::int64_t spin_registers(std::string rate, std::int64_t rounds) {
  return ops::spin_registers(rate, rounds, torch_executor());
}

}  // namespace
}  // namespace sparseloom::binding

STABLE_TORCH_LIBRARY_IMPL(sparseloom, CompositeExplicitAutograd, m) {
  m.impl("plan", TORCH_BOX(&sparseloom::binding::plan_json));
  m.impl("version", TORCH_BOX(&sparseloom::binding::version));
  m.impl("info", TORCH_BOX(&sparseloom::binding::info));
  m.impl("activation_names", TORCH_BOX(&sparseloom::binding::activation_names));
  m.impl("row_number", TORCH_BOX(&sparseloom::binding::row_number));
  m.impl("kernel_runs", TORCH_BOX(&sparseloom::binding::kernel_runs));
  m.impl("spin_registers", TORCH_BOX(&sparseloom::binding::spin_registers));
}
