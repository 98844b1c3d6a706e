// Strings and numbers as JSON, for the output of info and plan.
#pragma once

#include <charconv>
#include <cmath>
#include <cstdio>
#include <string>

namespace sparseloom::core {

/// The text in quotes, with quotes, backslashes and control characters escaped.
inline std::string json_string(const std::string& text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x", c);
      out += escape;
    } else {
      out += c;
    }
  }
  return out + "\"";
}

/// The shortest text that reads back as the same number, whatever the locale; null for inf and NaN, which
/// JSON does not have.
inline std::string json_number(double value) {
  if (!std::isfinite(value)) return "null";
  char text[32];
  return std::string(text, std::to_chars(text, text + sizeof text, value).ptr);
}

}  // namespace sparseloom::core
