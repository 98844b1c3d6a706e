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

/// The grid and the seed, which all generators take, and the numbers, which differ.
struct Request {
  std::int64_t rows, cols;
  BlockShape block;
  Numbers numbers;
  std::uint64_t seed;

  /// Number i as a count. Throws Error on a fraction, NaN, or more than an int64 holds.
  std::int64_t count(std::size_t i) const {
    const double number = numbers[i];
    if (std::abs(number) < 0x1p63 && std::trunc(number) == number) return static_cast<std::int64_t>(number);
    core::fail("pattern.generate", "a whole number where the generator counts", std::to_string(number),
               "pass an integer");
  }
  std::int64_t count(std::size_t i, std::int64_t otherwise) const {
    return i < numbers.size() ? count(i) : otherwise;
  }
  bool flag(std::size_t i) const { return count(i, 0) != 0; }
};

struct Generator {
  const char* name;
  const char* arguments;    // as an error names them
  std::size_t least, most;  // how many of them
  BlockPattern (*make)(const Request& of);
};

template <BlockPattern (*make)(std::int64_t, std::int64_t, BlockShape, double, std::uint64_t)>
BlockPattern by_density(const Request& of) {
  return make(of.rows, of.cols, of.block, of.numbers[0], of.seed);
}

constexpr auto kGenerators = std::to_array<Generator>({
    {"random", "density", 1, 1, by_density<random>},
    {"balanced", "density", 1, 1, by_density<balanced>},
    {"biregular", "density", 1, 1, by_density<biregular>},
    {"banded", "bandwidth", 1, 1,
     [](const Request& of) { return banded(of.rows, of.cols, of.block, of.count(0)); }},
    {"block_diagonal", "groups, shuffle", 1, 2,
     [](const Request& of) { return block_diagonal(of.rows, of.cols, of.block, of.count(0), of.flag(1)); }},
    {"watts_strogatz", "k, p", 2, 2,
     [](const Request& of) {
       return watts_strogatz(of.rows, of.cols, of.block, of.count(0), of.numbers[1], of.seed);
     }},
    {"watts_strogatz_2d", "k, p, height", 2, 3,
     [](const Request& of) {
       return watts_strogatz_2d(of.rows, of.cols, of.block, of.count(0), of.numbers[1], of.seed,
                                of.count(2, 0));
     }},
    {"barabasi_albert", "m", 1, 1,
     [](const Request& of) { return barabasi_albert(of.rows, of.cols, of.block, of.count(0), of.seed); }},
    {"strided", "stride, causal", 1, 2,
     [](const Request& of) { return strided(of.rows, of.cols, of.block, of.count(0), of.flag(1)); }},
    {"fixed", "stride, summary, causal", 1, 3,
     [](const Request& of) {
       return fixed(of.rows, of.cols, of.block, of.count(0), of.count(1, 1), of.flag(2));
     }},
    {"butterfly", "factors", 0, 1,
     [](const Request& of) { return butterfly(of.rows, of.cols, of.block, of.count(0, 0)); }},
    {"expander", "degree", 1, 1,
     [](const Request& of) { return expander(of.rows, of.cols, of.block, of.count(0), of.seed); }},
});

}  // namespace

BlockPattern generate(std::string_view name, std::int64_t rows, std::int64_t cols, BlockShape block,
                      std::span<const double> arguments, std::uint64_t seed) {
  for (const Generator& generator : kGenerators) {
    if (name != generator.name) continue;
    if (arguments.size() < generator.least || arguments.size() > generator.most) {
      core::fail("pattern.generate", std::string(name) + " with its arguments " + generator.arguments,
                 std::to_string(arguments.size()) + " numbers",
                 "pass one number for each; those that have defaults may be left out");
    }
    return generator.make({rows, cols, block, arguments, seed});
  }
  std::string names;
  for (const Generator& generator : kGenerators) {
    names += (names.empty() ? "" : ", ") + std::string(generator.name);
  }
  core::fail("pattern.generate", "one of " + names, "'" + std::string(name) + "'",
             "see sparseloom/pattern.h");
}

}  // namespace sparseloom::pattern
