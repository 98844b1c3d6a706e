// info_json: the contents of this build and of this machine, with the reason for everything that is missing.
#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/json.h"
#include "kernels/bsr_linear/cpu/rates.h"
#include "kernels/machine_rates.h"
#include "ops/rows.h"
#include "plan/registry.h"
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

// The instruction set that a CPU row's name begins with: avx512bf16 of avx512bf16_conv. Names without one are
// plain C++ and kernels from outside, which refuse what they cannot run.
runtime::Isa isa_of_name(std::string_view row) {
  using runtime::Isa;
  constexpr std::pair<std::string_view, Isa> kPrefixes[] = {{"amx", Isa::amx},
                                                            {"avx512bf16", Isa::avx512_bf16},
                                                            {"avx512vnni", Isa::avx512_vnni},
                                                            {"avx512", Isa::avx512},
                                                            {"avx2", Isa::avx2}};
  const std::string_view prefix = row.substr(0, row.find('_'));
  for (const auto& [name, isa] : kPrefixes)
    if (prefix == name) return isa;
  return Isa::generic;
}

// {"bsr_linear": ["avx2_panel", ...], ...}: the rows of each verb that this machine can run, but dense and
// reference, which every verb has.
std::string runnable(const runtime::CudaSummary& cuda) {
  std::vector<std::pair<std::string_view, std::string>> verbs;
  for (const plan::AnyRow& row : plan::all_rows()) {
    const std::string_view name = row.name;
    if (name == "dense" || name == "reference") continue;
    auto verb = std::find_if(verbs.begin(), verbs.end(), [&](const auto& v) { return v.first == row.verb; });
    if (verb == verbs.end()) verb = verbs.insert(verbs.end(), {row.verb, ""});
    const bool runs =
        row.where == Placement::cuda ? cuda.devices > 0 : runtime::active_isa().has(isa_of_name(name));
    if (runs) verb->second += (verb->second.empty() ? "" : ", ") + core::json_string(row.name);
  }
  std::string text = "{";
  for (const auto& [verb, names] : verbs)
    text += (text.size() > 1 ? ", " : "") + core::json_string(std::string(verb)) + ": [" + names + "]";
  return text + "}";
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
  text += "}, \"families\": " + runnable(cuda) + ", \"rates\": {";
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
