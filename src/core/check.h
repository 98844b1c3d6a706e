// The failing path of the checks at the op boundary, and small integer helpers that every folder needs.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>

#include "sparseloom/error.h"

namespace sparseloom::core {

/// Throws Error. It is out of line and cold, so that a check costs the caller only a compare and a branch.
[[noreturn]] __attribute__((cold, noinline)) inline void fail(std::string op, std::string expected,
                                                              std::string actual, std::string remedy) {
  throw Error(std::move(op), std::move(expected), std::move(actual), std::move(remedy));
}

/// Memory that a call reads or writes. `needed`: it is not empty, so it must not be null.
struct Memory {
  const char* name;
  const void* at;
  bool needed = true;
};
/// Throws Error that names the first null pointer to needed memory.
inline void require_memory(const char* op, std::initializer_list<Memory> all) {
  for (const Memory& each : all)
    if (each.at == nullptr && each.needed)
      fail(op, std::string("memory behind ") + each.name, "a null pointer", "pass its data");
}

/// Throws Error on a number that is no enumerator up to `last`.
template <class Enum>
void require_known(const char* op, const char* what, Enum code, Enum last) {
  if (static_cast<int>(code) < 0 || code > last)
    fail(op, std::string("a known ") + what, "number " + std::to_string(static_cast<int>(code)),
         "pass one of its enumerators");
}

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) noexcept { return (a + b - 1) / b; }
constexpr std::int64_t round_up(std::int64_t a, std::int64_t multiple) noexcept {
  return ceil_div(a, multiple) * multiple;
}

/// "[3, 5]"
inline std::string shape(std::int64_t rows, std::int64_t cols) {
  return "[" + std::to_string(rows) + ", " + std::to_string(cols) + "]";
}

}  // namespace sparseloom::core
