// Rates on disk.
//   sparseloom rates 2           1 had no int8: another header, so measured anew
//   key <rates_key>
//   f32_avx2 115000000000        one line for each field
//   sum <fingerprint of all lines above>
#include <charconv>
#include <cmath>

#include "core/json.h"
#include "kernels/cpu/rates.h"
#include "runtime/cache_file.h"
#include "sparseloom/version.h"

namespace sparseloom::kernels {
namespace {

constexpr const char* kHeader = "sparseloom rates 2\n";

// Of one core; no CPU does more than some 1e13, and a rate of a million is a stopped machine.
constexpr double kLeast = 1e6, kMost = 1e15;
bool possible(double rate) { return rate == 0 || (rate >= kLeast && rate <= kMost); }

// Takes "name value\n" off the front of `text`; false when it does not stand there.
bool take_line(std::string_view& text, std::string_view name, std::string_view& value) {
  const std::size_t end = text.find('\n');
  if (end == std::string_view::npos || end <= name.size() || !text.starts_with(name) || text[name.size()] != ' ') return false;
  value = text.substr(name.size() + 1, end - name.size() - 1);
  text.remove_prefix(end + 1);
  return true;
}

}  // namespace

std::string rates_key(runtime::Isa isa) {
#if defined(__OPTIMIZE__) && !defined(__SANITIZE_ADDRESS__)
  constexpr const char* kBuild = "optimised";
#else
  constexpr const char* kBuild = "slow";  // the measuring loops are compiled too
#endif
  std::string key = runtime::cpu_identity() + ", up to " + runtime::name_of(isa) + ", sparseloom " SPARSELOOM_VERSION " by g++ " +
                    __VERSION__ + " " SPARSELOOM_BUILD_TYPE " " + kBuild;
  for (char& c : key)
    if (static_cast<unsigned char>(c) < 0x20) c = ' ';
  return key;
}

std::string rates_file(const std::string& key) { return "rates-" + runtime::fingerprint(key) + ".txt"; }

std::string rates_text(const plan::MachineRates& rates, const std::string& key) {
  std::string text = kHeader + ("key " + key + "\n");
  for (const RateField& field : rate_fields()) text += std::string(field.name) + " " + core::json_number(rates.*field.rate) + "\n";
  return text + "sum " + runtime::fingerprint(text) + "\n";
}

std::optional<plan::MachineRates> parse_rates(const std::string& text, const std::string& key) {
  std::string_view rest = text, value;
  if (!rest.starts_with(kHeader)) return std::nullopt;
  rest.remove_prefix(std::string_view(kHeader).size());
  if (!take_line(rest, "key", value) || value != key) return std::nullopt;
  plan::MachineRates rates;
  for (const RateField& field : rate_fields()) {
    if (!take_line(rest, field.name, value)) return std::nullopt;
    double& rate = rates.*field.rate;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), rate);
    if (error != std::errc() || end != value.data() + value.size() || !std::isfinite(rate) || !possible(rate)) return std::nullopt;
  }
  const std::size_t signed_part = text.size() - rest.size();
  if (!take_line(rest, "sum", value) || !rest.empty() || value != runtime::fingerprint(text.substr(0, signed_part)))
    return std::nullopt;
  return rates;
}

KnownRates known_rates(const std::string& folder, runtime::Isa isa) {
  const std::string key = rates_key(isa), name = rates_file(key), path = folder + "/" + name;
  if (!folder.empty())
    if (const auto text = runtime::read_small_file(path))
      if (const auto rates = parse_rates(*text, key)) return {*rates, "read from " + path};
  const plan::MachineRates rates = measure_rates(isa);
  if (folder.empty()) return {rates, "measured, not kept: no cache folder (SPARSELOOM_CACHE)"};
  const std::string failed = runtime::replace_file(folder, name, rates_text(rates, key));
  return {rates, failed.empty() ? "measured and kept in " + path : "measured, not kept: " + failed};
}

}  // namespace sparseloom::kernels
