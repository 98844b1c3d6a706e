// info_json: the contents of this build and of this machine, with the reason for everything that is missing.
#include "core/json.h"
#include "kernels/bsr_linear/cpu/rates.h"
#include "kernels/machine_rates.h"
#include "ops/rows.h"
#include "runtime/cpu.h"
#include "runtime/cuda.h"
#include "sparseloom/ops.h"
#include "sparseloom/version.h"

namespace sparseloom {
namespace {

// Why this machine cannot run the row; empty if it can.
std::string unavailable(const ops::Listed& row, const runtime::CudaSummary& cuda) {
  if (row.where == Placement::cuda) return cuda.devices > 0 ? "" : cuda.reason;
  if (runtime::active_isa().has(row.isa)) return {};
  return std::string("needs ") + runtime::name_of(row.isa) + ", " +
         (runtime::detected_isa().has(row.isa) ? "SPARSELOOM_ISA caps it at " : "this CPU runs up to ") +
         runtime::name_of(runtime::active_isa());
}

}  // namespace

std::string info_json() {
  using core::json_number;
  using core::json_string;
  const plan::MachineRates& rates = kernels::machine_rates();
  const runtime::CudaSummary cuda = runtime::cuda_summary();
  const std::string& forced = runtime::forced_isa();
  std::string text = "{\"version\": " + json_string(SPARSELOOM_VERSION) +
                     ", \"compiler\": " + json_string("g++ " __VERSION__) +
                     ", \"build_type\": " + json_string(SPARSELOOM_BUILD_TYPE) +
                     ", \"cpu\": " + json_string(runtime::cpu_name()) +
                     ", \"isa_detected\": " + json_string(runtime::name_of(runtime::detected_isa())) +
                     ", \"isa_active\": " + json_string(runtime::name_of(runtime::active_isa())) +
                     ", \"isa_forced\": " + (forced.empty() ? "null" : json_string(forced)) +
                     ", \"kernels\": [";
  const std::vector<ops::Listed> kernels = ops::listed_kernels();
  const char* comma = "";
  for (const ops::Listed& row : kernels) {
    text += comma + json_string(row.name);
    comma = ", ";
  }
  text += "], \"kernels_unavailable\": {";
  comma = "";
  for (const ops::Listed& row : kernels) {
    const std::string reason = unavailable(row, cuda);
    if (reason.empty()) continue;
    text += comma + json_string(row.name) + ": " + json_string(reason);
    comma = ", ";
  }
  text += "}, \"rates\": {";
  comma = "";
  for (const kernels::RateField& field : kernels::rate_fields()) {
    text += comma + json_string(field.name) + ": " + json_number(rates.*field.rate);
    comma = ", ";
  }
  text += "}, \"rates_origin\": " + json_string(kernels::machine_rates_origin()) +
          ", \"cuda\": {\"compiled\": " + (cuda.compiled ? "true" : "false") +
          ", \"devices\": " + std::to_string(cuda.devices) + ", \"reason\": " + json_string(cuda.reason) +
          ", \"names\": [";
  comma = "";
  for (const std::string& name : cuda.names) {
    text += comma + json_string(name);
    comma = ", ";
  }
  return text + "]}}";
}

}  // namespace sparseloom
