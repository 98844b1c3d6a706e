// The operator plan: which kernel a call would run, and why.
#include "plan.h"

#include <map>

#include "core/check.h"
#include "core/json.h"
#include "executor.h"
#include "operands.h"
#include "ops/row_number.h"
#include "registration.h"

namespace sparseloom::binding {

using core::json_number;
using core::json_string;

namespace {

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

struct Family {
  FamilyPlan::Answer plan, scaled;
};

std::map<std::string, Family>& families() {
  static std::map<std::string, Family> families_by_name;
  return families_by_name;
}

const Family& family_named(const std::string& name) {
  if (const auto family = families().find(name); family != families().end()) return family->second;
  std::string names;
  for (const auto& [family, _] : families()) names += (names.empty() ? "" : ", ") + family;
  core::fail("plan", "a family of " + names, "'" + name + "'", "pass one of them");
}

std::string plan(Text family_name, Numbers sizes, Text direction_name, Text dtype_name, std::int64_t m,
                 std::int64_t device, bool bias, std::int64_t activation, bool residual, std::int64_t row,
                 bool strict, bool tf32, std::int64_t digest, bool use_fast_accum, bool accumulate,
                 bool aligned, std::optional<Tensor> index) {
  const std::string family = taken(family_name), direction = taken(direction_name), dtype = taken(dtype_name);
  const Family& answers = family_named(family);
  // The dtype may be "int8 to bf16", as plans print it; other operands have outputs of their own dtype.
  const std::string kTo = " to ";
  const std::size_t to = dtype.find(kTo);
  PlanCall call{};
  call.family = family, call.sizes = {sizes.begin(), sizes.end()};
  call.direction = direction_of(direction);
  call.dtype = dtype_named(dtype.substr(0, to));
  if (to != std::string::npos) call.out = dtype_named(dtype.substr(to + kTo.size()));
  if (m < 0) core::fail("plan", "0 tokens and more", std::to_string(m), "pass the batch's tokens");
  call.m = m, call.device = device;
  call.bias = bias, call.activation = activation_of("plan", activation), call.residual = residual;
  call.row = ops::row_name("plan", row), call.strict = strict, call.tf32 = tf32, call.digest = digest;
  call.use_fast_accum = use_fast_accum, call.accumulate = accumulate, call.aligned = aligned;
  call.index = index;
  const bool scaled = is_scaled(call.dtype);
  if (scaled && call.direction != Direction::forward)
    core::fail("plan",
               std::string("direction forward: ") + name_of(call.dtype) + " products have no gradients",
               direction, "train in f32, f16 or bf16 and quantize the trained weight");
  if (scaled && (residual || accumulate))
    core::fail("plan", std::string("neither residual nor accumulate beside ") + name_of(call.dtype),
               residual ? "residual" : "accumulate", "add it in a pass of your own");
  return (scaled ? answers.scaled : answers.plan)(call);
}

}  // namespace

FamilyPlan::FamilyPlan(const char* family, Answer plan, Answer scaled) {
  families()[family] = {plan, scaled};
}

Executor PlanCall::executor() const {
  const Executor torchs = torch_executor();
  if (device < 0) return torchs;
  Executor on_device = Executor::cuda(static_cast<int>(device));
  on_device.gemm = torchs.gemm;
  on_device.scaled_gemm = torchs.scaled_gemm;
  on_device.conv = torchs.conv;
  return on_device;
}

void PlanCall::require_sizes(std::size_t count, const char* names) const {
  bool valid = sizes.size() == count;
  std::string listed;
  for (const std::int64_t size : sizes) {
    valid = valid && size >= 0;
    listed += (listed.empty() ? "" : ", ") + std::to_string(size);
  }
  if (!valid)
    core::fail("plan", "the sizes " + std::string(names) + " of " + family + ", 0 and more",
               "[" + listed + "]", "pass the layer's sizes");
}

std::string json_of(const Choice& plan, const std::optional<double>& copy_us, const std::string& text) {
  std::string json = "{\"kernel\": " + json_string(plan.kernel_name) +
                     ", \"predicted_us\": " + json_number(plan.predicted_us) +
                     ", \"workspace_bytes\": " + std::to_string(plan.workspace_bytes) +
                     ", \"dense_copy_us\": " + (copy_us ? json_number(*copy_us) : "null") +
                     ", \"candidates\": [";
  const char* comma = "";
  for (const Candidate& c : plan.candidates) {
    json += std::string(comma) + "{\"kernel\": " + json_string(c.kernel) +
            ", \"refusal\": " + json_string(c.refusal) +
            ", \"predicted_us\": " + (c.refusal.empty() ? json_number(c.predicted_us) : "null") + "}";
    comma = ", ";
  }
  return json + "], \"text\": " + json_string(text) + "}";
}

}  // namespace sparseloom::binding

SPARSELOOM_TORCH_LIBRARY_IMPL(CompositeExplicitAutograd, m) {
  m.impl("plan", TORCH_BOX(&sparseloom::binding::plan));
}
