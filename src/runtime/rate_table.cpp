// Writing and parsing tables of measured rates.
#include "runtime/rate_table.h"

#include <charconv>
#include <cmath>
#include <string_view>

#include "core/json.h"
#include "runtime/cache_file.h"

namespace sparseloom::runtime {
namespace {

// Plausible rates per second: a core does about 1e13 operations at most, a GPU about 1e16, and a rate of a
// million would be a stopped machine.
constexpr double kLeast = 1e6, kMost = 1e18;
bool possible(double rate) { return rate == 0 || (rate >= kLeast && rate <= kMost); }

// Removes "name value\n" from the front of `text`. Returns false if `text` does not begin with such a line.
bool take_line(std::string_view& text, std::string_view name, std::string_view& value) {
  const std::size_t end = text.find('\n');
  if (end == std::string_view::npos || end <= name.size() || !text.starts_with(name) ||
      text[name.size()] != ' ')
    return false;
  value = text.substr(name.size() + 1, end - name.size() - 1);
  text.remove_prefix(end + 1);
  return true;
}

}  // namespace

std::string kept_as(const std::string& path, const std::string& failed, const std::string& ignored) {
  return (failed.empty() ? "measured and kept in " + path : "measured, not kept: " + failed) +
         (ignored.empty() ? "" : "; ignored what was there: " + ignored);
}

std::string rate_table_text(const std::string& header, const std::string& key,
                            std::span<const NamedRate> rates) {
  std::string text = header + "\nkey " + key + "\n";
  for (const NamedRate& rate : rates)
    text += std::string(rate.name) + " " + core::json_number(rate.rate) + "\n";
  return text + "sum " + fingerprint(text) + "\n";
}

std::optional<std::vector<double>> parse_rate_table(const std::string& text, const std::string& header,
                                                    const std::string& key,
                                                    std::span<const char* const> names) {
  std::string_view rest = text, value;
  if (!rest.starts_with(header + "\n")) return std::nullopt;
  rest.remove_prefix(header.size() + 1);
  if (!take_line(rest, "key", value) || value != key) return std::nullopt;
  std::vector<double> rates;
  for (const char* name : names) {
    if (!take_line(rest, name, value)) return std::nullopt;
    double rate = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), rate);
    if (error != std::errc() || end != value.data() + value.size() || !std::isfinite(rate) || !possible(rate))
      return std::nullopt;
    rates.push_back(rate);
  }
  const std::size_t signed_part = text.size() - rest.size();
  if (!take_line(rest, "sum", value) || !rest.empty() || value != fingerprint(text.substr(0, signed_part)))
    return std::nullopt;
  return rates;
}

}  // namespace sparseloom::runtime
