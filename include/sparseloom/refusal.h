// Refusal: why a kernel cannot run a problem, kept as a code and formatted when it is printed.
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>

#include "sparseloom/export.h"

namespace sparseloom {

/// A text with "{}" for at most kMost numbers or names, which are inserted when it is printed. It owns
/// nothing: text and names have to live as long as the process. An empty one refuses nothing.
class Refusal {
 public:
  static constexpr std::size_t kMost = 6;

  constexpr Refusal() = default;
  template <class... Values>
  constexpr Refusal(const char* text, Values... values)  // NOLINT: a refusal without values is its text
      : text_(text), words_{Word(values)...} {
    static_assert(sizeof...(Values) <= kMost);
  }

  constexpr explicit operator bool() const noexcept { return text_ != nullptr; }
  constexpr bool empty() const noexcept { return text_ == nullptr; }

  SPARSELOOM_API std::string text() const;

 private:
  struct Word {
    const char* name = nullptr;
    std::int64_t number = 0;
    constexpr Word() = default;
    constexpr explicit Word(const char* given) : name(given) {}
    constexpr explicit Word(std::integral auto given) : number(static_cast<std::int64_t>(given)) {}
  };

  const char* text_ = nullptr;
  std::array<Word, kMost> words_{};
};

}  // namespace sparseloom
