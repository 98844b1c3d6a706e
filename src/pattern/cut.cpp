#include "pattern/cut.h"

#include <cstdlib>
#include <limits>
#include <string>
#include <utility>

#include "core/check.h"

namespace sparseloom::pattern {
namespace {

constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();

/// floor(total * part / parts), also for totals whose product with part would overflow.
std::int64_t share(std::int64_t total, std::int64_t part, std::int64_t parts) {
  return total / parts * part + total % parts * part / parts;
}

}  // namespace

std::vector<std::int64_t> cut_lines(std::span<const std::int64_t> stored, std::int64_t parts) {
  const char* op = "pattern.cut_lines";
  const auto lines = static_cast<std::int64_t>(stored.size());
  if (parts < 1 || parts > lines || lines > kMost)
    core::fail(op, "1 to " + std::to_string(lines) + " parts, as many as there are lines of blocks",
               std::to_string(parts), "use fewer ranks, or a smaller block");
  std::vector<std::int64_t> before(1, 0);  // the blocks before each line
  before.reserve(stored.size() + 1);
  for (const std::int64_t blocks : stored) {
    if (blocks < 0 || blocks > kMost)
      core::fail(op, "counts of blocks in [0, 2^31 - 1]", std::to_string(blocks), "count stored blocks");
    before.push_back(before.back() + blocks);
  }
  std::vector<std::int64_t> borders(1, 0);
  for (std::int64_t part = 1; part < parts; ++part) {
    const std::int64_t blocks = share(before.back(), part, parts), even = share(lines, part, parts);
    const auto apart = [&](std::int64_t line) {
      return std::pair(std::abs(before[static_cast<std::size_t>(line)] - blocks), std::abs(line - even));
    };
    std::int64_t best = borders.back() + 1;
    for (std::int64_t line = best + 1; line <= lines - (parts - part); ++line)
      if (apart(line) < apart(best)) best = line;
    borders.push_back(best);
  }
  borders.push_back(lines);
  return borders;
}

}  // namespace sparseloom::pattern
