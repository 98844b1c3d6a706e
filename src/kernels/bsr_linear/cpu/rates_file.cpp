// Keeps the machine's rates in a file of the cache folder, and reads them back.
#include "kernels/bsr_linear/cpu/rates.h"
#include "runtime/cache_file.h"
#include "sparseloom/version.h"

namespace sparseloom::kernels {
namespace {

// Version 1 had no int8, and version 2 multiplied zeros. Files with another header are measured anew.
constexpr const char* kHeader = "sparseloom rates 3";

}  // namespace

std::string rates_key(runtime::Isa isa) {
#if defined(__OPTIMIZE__) && !defined(__SANITIZE_ADDRESS__)
  constexpr const char* kBuild = "optimised";
#else
  constexpr const char* kBuild = "slow";  // an unoptimised build measures lower rates
#endif
  std::string key = runtime::cpu_identity() + ", up to " + runtime::name_of(isa) +
                    ", sparseloom " SPARSELOOM_VERSION " by g++ " + __VERSION__ +
                    " " SPARSELOOM_BUILD_TYPE " " + kBuild;
  for (char& c : key)
    if (static_cast<unsigned char>(c) < 0x20) c = ' ';
  return key;
}

std::string rates_file(const std::string& key) { return "rates-" + runtime::fingerprint(key) + ".txt"; }

std::string rates_text(const plan::MachineRates& rates, const std::string& key) {
  return runtime::rate_table_text(kHeader, key, rate_fields(), rates);
}

std::optional<plan::MachineRates> parse_rates(const std::string& text, const std::string& key) {
  return runtime::parse_rate_table(text, kHeader, key, rate_fields());
}

KnownRates known_rates(const std::string& folder, runtime::Isa isa) {
  const std::string key = rates_key(isa), name = rates_file(key), path = folder + "/" + name;
  if (folder.empty()) return {measure_rates(isa), "measured, not kept: no cache folder (SPARSELOOM_CACHE)"};
  const runtime::SmallFile file = runtime::read_small_file(path);
  if (file.text)
    if (const auto rates = parse_rates(*file.text, key); rates && has_all(*rates, isa))
      return {*rates, "read from " + path};
  const plan::MachineRates rates = measure_rates(isa);
  const std::string failed = runtime::replace_file(folder, name, rates_text(rates, key));
  return {rates, runtime::kept_as(path, failed, file.ignored)};
}

}  // namespace sparseloom::kernels
