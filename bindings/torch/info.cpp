// The operators version, info, activation_names, row_number, kernel_runs, spin_registers and those of the
// number of threads: the contents of this build and machine, the kernels that ran, and the CPU's rate.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>

#include "convert.h"
#include "core/json.h"
#include "executor.h"
#include "kernels/runs.h"
#include "ops/row_number.h"
#include "ops/spin.h"
#include "registration.h"
#include "sparseloom/activation.h"
#include "sparseloom/ops.h"
#include "sparseloom/version.h"

namespace sparseloom::binding {
namespace {

using core::json_string;

std::string version() { return SPARSELOOM_VERSION; }

std::string info() { return info_json(); }

std::string activation_names() {
  std::string names;
  for (const ActivationRow& row : kActivations)
    names += (names.empty() ? "" : " ") + std::string(row.torch_name);
  return names;
}

std::int64_t row_number(Text name) { return ops::row_number(taken(name)); }

std::string kernel_runs() {
  std::string text = "{";
  for (const auto& [kernel, runs] : kernels::kernel_runs())
    text += (text.size() == 1 ? "" : ", ") + json_string(kernel) + ": " + std::to_string(runs);
  return text + "}";
}

std::int64_t spin_registers(Text rate, std::int64_t rounds) {
  return ops::spin_registers(taken(rate), rounds, torch_executor());
}

std::int64_t threads_of_calls() { return num_threads(); }

void cap_threads(std::int64_t most) {
  set_num_threads(static_cast<int>(std::clamp<std::int64_t>(most, -1, std::numeric_limits<int>::max())));
}

}  // namespace
}  // namespace sparseloom::binding

SPARSELOOM_TORCH_LIBRARY_IMPL(CompositeExplicitAutograd, m) {
  m.impl("version", TORCH_BOX(&sparseloom::binding::version));
  m.impl("info", TORCH_BOX(&sparseloom::binding::info));
  m.impl("activation_names", TORCH_BOX(&sparseloom::binding::activation_names));
  m.impl("row_number", TORCH_BOX(&sparseloom::binding::row_number));
  m.impl("kernel_runs", TORCH_BOX(&sparseloom::binding::kernel_runs));
  m.impl("spin_registers", TORCH_BOX(&sparseloom::binding::spin_registers));
  m.impl("num_threads", TORCH_BOX(&sparseloom::binding::threads_of_calls));
  m.impl("set_num_threads", TORCH_BOX(&sparseloom::binding::cap_threads));
}
