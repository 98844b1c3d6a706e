// A verb that no family of the library has: the sum of a row of numbers, times a factor.
#pragma once

#include <cstdint>
#include <string>

#include "sparseloom/verb.h"

namespace sparseloom::plan {

struct Toy {
  static constexpr const char* kName = "toy_sum";
  struct Problem {
    std::int64_t count = 0;
    int device = -1;
    bool strict = false;
  };
  struct Args {
    const double* numbers = nullptr;
    double* out = nullptr;
  };
  struct Schedule {
    int width = 0;  // numbers that are added at a time
  };
  static ProblemKey key(const Problem& p) {
    return {static_cast<std::uint64_t>(p.count),
            static_cast<std::uint64_t>(p.device + 1) << 1 | static_cast<std::uint64_t>(p.strict)};
  }
  static std::string print(const Problem& p) { return "toy sum of " + std::to_string(p.count); }
  static std::string print(const Schedule& s) { return "adds " + std::to_string(s.width) + " at a time"; }
};

/// The same problem under another name, so that a test may have rows of its own.
template <int kNumber>
struct ToyOf : Toy {
  static constexpr const char kLetters[] = {'t', 'o', 'y', '0' + kNumber, 0};
  static constexpr const char* kName = kLetters;
};

}  // namespace sparseloom::plan
