// libFuzzer over what reads a pattern: generators by name and numbers, masks, scores, and the functions that
// walk the pattern of a mask. What is read back from a pattern, its index and its transpose is what went in.
#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bytes.h"
#include "pattern/cut.h"
#include "sparseloom/error.h"
#include "sparseloom/layout.h"
#include "sparseloom/pattern.h"
#include "sparseloom/pattern_graph.h"

namespace sparseloom {
namespace {

void require(bool holds) {
  if (!holds) __builtin_trap();
}

BlockShape block_of(Bytes& in) {
  constexpr std::int32_t sides[] = {8, 16, 32, 64, 128, 0, -8, 24};
  return {sides[in.take<std::uint8_t>() % 8], sides[in.take<std::uint8_t>() % 8]};
}

/// Rows and columns of a matrix: few blocks, or any numbers, of which a grid may have no cells.
struct Sizes {
  explicit Sizes(Bytes& in) : rows(in.size(200)), cols(in.size(200)) {}
  /// Whether a grid is so large that memory for it is a fair demand.
  bool large() const { return rows > 0 && cols > 0 && (rows > 4096 || cols > 4096); }
  std::int64_t rows, cols;
};

/// Whatever takes a pattern, on one that is valid.
void walk(const BlockPattern& pattern, Bytes& in) {
  const std::int64_t blocks = pattern.count();
  require((~pattern).count() == pattern.block_rows() * pattern.block_cols() - blocks);
  require(pattern.transposed().transposed() == pattern && pattern.stats().blocks == blocks);
  require((pattern ^ pattern).count() == 0 &&
          (pattern | ~pattern).count() == (pattern - ~pattern).count() + (~pattern).count());
  const BlockIndex index(pattern);
  require(index.pattern() == pattern && index.view().blocks == blocks);
  pattern.ascii(in.take<std::int32_t>() % 200);
  pattern.svg(in.take<std::int32_t>() % 2000);
  if (pattern.block_rows() > 32 || pattern.block_cols() > 32) return;
  for (int what = 0; what < 4; ++what) {
    try {
      const std::int64_t number = in.size(40);
      if (what == 0) pattern::small_world(pattern);
      if (what == 1) pattern::distances(pattern, number);
      if (what == 2 && number < 1000) pattern::mixing(std::array{pattern, pattern.transposed()}, number);
      if (what == 3) require(pattern::extra_edges(pattern, number, 0).count() >= blocks + number);
    } catch (const Error&) {
    }
  }
}

void generators(Bytes& in) {
  constexpr std::string_view names[] = {"random",
                                        "balanced",
                                        "biregular",
                                        "banded",
                                        "block_diagonal",
                                        "watts_strogatz",
                                        "watts_strogatz_2d",
                                        "barabasi_albert",
                                        "strided",
                                        "fixed",
                                        "butterfly",
                                        "expander",
                                        "",
                                        "Random"};
  const std::string_view name = names[in.take<std::uint8_t>() % std::size(names)];
  const BlockShape block = block_of(in);
  const Sizes of(in);
  if (of.large()) return;
  std::vector<double> numbers(in.take<std::uint8_t>() % 5);
  for (double& number : numbers) {
    const auto kind = in.take<std::uint8_t>();
    number = kind == 255 ? in.take<double>() : kind % 2 ? kind / 255.0 : kind / 2;
  }
  const auto seed = in.take<std::uint64_t>();
  const BlockPattern made = pattern::generate(name, of.rows, of.cols, block, numbers, seed);
  require(made.rows() == of.rows && made.cols() == of.cols && made.block() == block);
  if (of.rows <= 4096 && of.cols <= 4096) {
    require(pattern::generate(name, of.rows, of.cols, block, numbers, seed) == made);
    walk(made, in);
  }
}

void masks(Bytes& in) {
  const BlockShape block = block_of(in);
  const Sizes of(in);
  if (of.large()) return;
  const auto mask = in.list<std::uint8_t>(in.take<std::uint16_t>() % 700);
  const BlockPattern read = pattern::from_mask(of.rows, of.cols, block, mask);
  require(read.count() == static_cast<std::int64_t>(mask.size()) - std::count(mask.begin(), mask.end(), 0));
  if (!mask.empty()) walk(read, in);
}

void scores(Bytes& in) {
  const BlockShape block = block_of(in);
  const Sizes of(in);
  if (of.large()) return;
  const auto given = in.list<std::uint32_t>(in.take<std::uint16_t>() % 700);
  std::vector<float> of_blocks;
  for (const std::uint32_t bits : given)
    of_blocks.push_back(bits < 255 ? static_cast<float>(bits) : std::bit_cast<float>(bits));
  const std::int64_t count = in.size(200);
  const auto choose = in.take<std::uint8_t>() % 2 ? pattern::top_k : pattern::top_k_by_row;
  require(choose(of.rows, of.cols, block, of_blocks, count).count() == count);
}

void cuts(Bytes& in) {
  const auto stored = in.list<std::int64_t>(in.take<std::uint8_t>());
  const std::int64_t parts = in.size(40);
  const std::vector<std::int64_t> borders = pattern::cut_lines(stored, parts);
  require(static_cast<std::int64_t>(borders.size()) == parts + 1 && borders.front() == 0);
  require(borders.back() == static_cast<std::int64_t>(stored.size()));
  require(std::adjacent_find(borders.begin(), borders.end(), std::greater_equal<>()) == borders.end());
}

}  // namespace
}  // namespace sparseloom

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace sparseloom;
  constexpr void (*targets[])(Bytes&) = {generators, masks, scores, cuts};
  Bytes in(data, size);
  try {
    targets[in.take<std::uint8_t>() % std::size(targets)](in);
  } catch (const Error&) {
  }
  return 0;
}
