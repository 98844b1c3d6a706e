// Measured rates as a text file stores them: the fields of a struct by name, with a key that identifies the
// measured machine.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

namespace sparseloom::runtime {

/// One field and the name that files and info_json() use for it.
template <class Rates>
struct RateField {
  const char* name;
  double Rates::*rate;
};

struct NamedRate {
  const char* name;
  double rate;
};

/// The text of a table:
/// header
/// key <key>
/// <name> <rate>                one line of text for each
/// sum <fingerprint of all lines above>
std::string rate_table_text(const std::string& header, const std::string& key,
                            std::span<const NamedRate> rates);

/// The origin of rates that were measured and then written to `path`: `failed` is replace_file's result,
/// `ignored` is read_small_file's reason about an existing file.
std::string kept_as(const std::string& path, const std::string& failed, const std::string& ignored);

/// The rates of `names`, in that order. Returns nothing unless the text is complete, has this header and key,
/// and every rate is 0 or plausible.
std::optional<std::vector<double>> parse_rate_table(const std::string& text, const std::string& header,
                                                    const std::string& key,
                                                    std::span<const char* const> names);

template <class Rates>
std::string rate_table_text(const std::string& header, const std::string& key,
                            std::span<const RateField<Rates>> fields, const Rates& rates) {
  std::vector<NamedRate> named;
  for (const RateField<Rates>& field : fields) named.push_back({field.name, rates.*field.rate});
  return rate_table_text(header, key, named);
}

template <class Rates>
std::optional<Rates> parse_rate_table(const std::string& text, const std::string& header,
                                      const std::string& key, std::span<const RateField<Rates>> fields) {
  std::vector<const char*> names;
  for (const RateField<Rates>& field : fields) names.push_back(field.name);
  const auto numbers = parse_rate_table(text, header, key, names);
  if (!numbers) return std::nullopt;
  Rates rates;
  for (std::size_t i = 0; i < names.size(); ++i) rates.*fields[i].rate = (*numbers)[i];
  return rates;
}

}  // namespace sparseloom::runtime
