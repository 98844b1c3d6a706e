// Facts of a pattern, and their digest.
#include <algorithm>
#include <numeric>
#include <span>
#include <vector>

#include "plan/evenness.h"
#include "sparseloom/layout.h"
#include "sparseloom/plan.h"

namespace sparseloom {

bool plan::uneven(std::span<const std::int64_t> lengths, std::int64_t group, double most) {
  const auto count = std::ssize(lengths);
  const std::int64_t blocks = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  std::int64_t longest = 0;
  for (std::int64_t first = 0; first < count; first += group)
    longest =
        std::max(longest, std::accumulate(lengths.begin() + first,
                                          lengths.begin() + std::min(first + group, count), std::int64_t{0}));
  const double mean = static_cast<double>(blocks) * static_cast<double>(group) /
                      static_cast<double>(std::max<std::int64_t>(count, group));
  return static_cast<double>(longest) > most * mean;
}

Facts facts_of(const IndexView& index) {
  std::vector<std::int64_t> lengths(static_cast<std::size_t>(index.block_rows()));
  for (std::size_t r = 0; r < lengths.size(); ++r) lengths[r] = index.crow[r + 1] - index.crow[r];
  return {true, plan::uneven(lengths, 1, plan::kUnevenRow)};
}

std::int64_t Facts::digest() const noexcept { return known ? std::int64_t{uneven_rows} : kUnknownDigest; }

Facts Facts::of_digest(std::int64_t digest) noexcept {
  return digest == 0 || digest == 1 ? Facts{true, digest == 1} : Facts{};
}

}  // namespace sparseloom
