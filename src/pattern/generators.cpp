// The generators by name, for callers that hold a name and numbers: the torch operator, files, a command
// line.
#include <array>
#include <cmath>
#include <string>

#include "core/check.h"
#include "pattern/grid.h"

namespace sparseloom::pattern {
namespace {

using Numbers = std::span<const double>;

struct Generator {
  const char* name;
  const char* arguments;  // as an error names them
  std::size_t count;
  BlockPattern (*make)(std::int64_t rows, std::int64_t cols, BlockShape block, Numbers numbers,
                       std::uint64_t seed);
};

/// A count that came as a double. Throws Error on a fraction, NaN, or more than an int64 holds.
std::int64_t whole(double number) {
  if (std::abs(number) < 0x1p63 && std::trunc(number) == number) return static_cast<std::int64_t>(number);
  core::fail("pattern.generate", "a whole number for a bandwidth, groups, k or m", std::to_string(number),
             "pass an integer");
}

template <BlockPattern (*make)(std::int64_t, std::int64_t, BlockShape, double, std::uint64_t)>
BlockPattern by_density(std::int64_t rows, std::int64_t cols, BlockShape block, Numbers numbers,
                        std::uint64_t seed) {
  return make(rows, cols, block, numbers[0], seed);
}

template <BlockPattern (*make)(std::int64_t, std::int64_t, BlockShape, std::int64_t)>
BlockPattern by_count(std::int64_t rows, std::int64_t cols, BlockShape block, Numbers numbers,
                      std::uint64_t) {
  return make(rows, cols, block, whole(numbers[0]));
}

constexpr auto kGenerators = std::to_array<Generator>({
    {"random", "density", 1, by_density<random>},
    {"balanced", "density", 1, by_density<balanced>},
    {"biregular", "density", 1, by_density<biregular>},
    {"banded", "bandwidth", 1, by_count<banded>},
    {"block_diagonal", "groups", 1, by_count<block_diagonal>},
    {"watts_strogatz", "k, p", 2,
     [](std::int64_t rows, std::int64_t cols, BlockShape block, Numbers numbers, std::uint64_t seed) {
       return watts_strogatz(rows, cols, block, whole(numbers[0]), numbers[1], seed);
     }},
    {"barabasi_albert", "m", 1,
     [](std::int64_t rows, std::int64_t cols, BlockShape block, Numbers numbers, std::uint64_t seed) {
       return barabasi_albert(rows, cols, block, whole(numbers[0]), seed);
     }},
});

}  // namespace

BlockPattern generate(std::string_view name, std::int64_t rows, std::int64_t cols, BlockShape block,
                      std::span<const double> arguments, std::uint64_t seed) {
  for (const Generator& generator : kGenerators) {
    if (name != generator.name) continue;
    if (arguments.size() != generator.count) {
      core::fail("pattern.generate", std::string(name) + " with its arguments " + generator.arguments,
                 std::to_string(arguments.size()) + " numbers", "pass one number for each");
    }
    return generator.make(rows, cols, block, arguments, seed);
  }
  std::string names;
  for (const Generator& generator : kGenerators) {
    names += (names.empty() ? "" : ", ") + std::string(generator.name);
  }
  core::fail("pattern.generate", "one of " + names, std::string(name), "see sparseloom/pattern.h");
}

}  // namespace sparseloom::pattern
