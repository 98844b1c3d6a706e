// Measured rates as files keep them: numbers by name, and what they were measured on.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

namespace sparseloom::runtime {

struct NamedRate {
  const char* name;
  double rate;
};

/// header
/// key <key>
/// <name> <rate>                one line for each
/// sum <fingerprint of all lines above>
std::string rate_table_text(const std::string& header, const std::string& key, std::span<const NamedRate> rates);

/// The rates of `names`, in that order; nothing unless the text is whole, of this header and key, and each rate 0 or a possible
/// one.
std::optional<std::vector<double>> parse_rate_table(const std::string& text, const std::string& header, const std::string& key,
                                                    std::span<const char* const> names);

}  // namespace sparseloom::runtime
