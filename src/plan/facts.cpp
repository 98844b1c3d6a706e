// Facts of a pattern, and their digest.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <numeric>
#include <span>
#include <vector>

#include "core/check.h"
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

namespace {

constexpr std::int64_t kClasses = 7, kFirstDigest = 2, kEndDigest = kFirstDigest + 4 * kClasses * kClasses;
constexpr std::int64_t kOfSome = -1;           // minus the digest of all blocks: the digest of some of them
constexpr double kClassEnds[] = {2, 3, 5, 9};  // of Longest::twice to Longest::nine, in means

Longest class_of(std::span<const std::int64_t> lengths, std::int64_t most) {
  if (lengths.empty()) return Longest::even;
  const double mean = static_cast<double>(std::reduce(lengths.begin(), lengths.end(), std::int64_t{0})) /
                      static_cast<double>(lengths.size());
  const auto longest = static_cast<double>(*std::max_element(lengths.begin(), lengths.end()));
  if (longest < mean + 1) return Longest::even;
  if (longest <= plan::longest_by_chance(mean, lengths.size(), most, plan::kSurelyChance))
    return Longest::chance;
  const auto* const end = std::find_if(std::begin(kClassEnds), std::end(kClassEnds),
                                       [&](double each) { return longest <= each * mean; });
  return static_cast<Longest>(static_cast<std::int64_t>(Longest::twice) + (end - std::begin(kClassEnds)));
}

}  // namespace

double plan::longest_by_chance(double mean, std::size_t count, std::int64_t most, double more) {
  const double room = static_cast<double>(std::max<std::int64_t>(most, 1));
  const double deviation = std::sqrt(mean * std::max(0.0, 1 - mean / room));
  return std::min(room, mean + (std::sqrt(2 * std::log(static_cast<double>(count) + 1)) + more) * deviation +
                            (more > 0 ? 1 : 0));
}

double plan::longest_over_mean(Longest longest, double mean, std::size_t count, std::int64_t most) {
  constexpr double kMiddles[] = {1.75, 2.5, 4, 7, 12};
  if (mean <= 0) return 1;
  const double room = static_cast<double>(most) / mean;
  if (longest == Longest::even) return std::ceil(mean) / mean;
  if (longest == Longest::chance)
    return std::max(std::ceil(mean), longest_by_chance(mean, count, most, 0)) / mean;
  return std::min(room, kMiddles[static_cast<int>(longest) - static_cast<int>(Longest::twice)]);
}

Facts facts_of(const IndexView& index) {
  core::require_memory("facts_of", {{"crow", index.crow}, {"col", index.col, index.blocks > 0}});
  std::vector<std::int64_t> rows(static_cast<std::size_t>(index.block_rows())),
      columns(static_cast<std::size_t>(index.block_cols()));
  for (std::size_t r = 0; r < rows.size(); ++r) rows[r] = index.crow[r + 1] - index.crow[r];
  for (std::int64_t i = 0; i < index.crow[rows.size()]; ++i)
    ++columns[static_cast<std::size_t>(index.col[i])];
  std::int64_t beside = 0;
  for (std::size_t r = 0; r < rows.size(); ++r)
    for (std::int64_t i = index.crow[r] + 1; i < index.crow[r + 1]; ++i)
      beside += index.col[i] == index.col[i - 1] + 1;
  const double blocks = static_cast<double>(index.crow[rows.size()]),
               density = blocks / std::max(1.0, static_cast<double>(rows.size() * columns.size()));
  // If chance explains the longest row, the expected value for random blocks decides: the rows themselves lie
  // on either side of kUnevenRow, and equal layers would not share a plan and a graph.
  const Longest longest = class_of(rows, std::ssize(columns));
  const bool uneven = longest <= Longest::chance
                          ? plan::longest_over_mean(longest, blocks / std::max<double>(1, std::ssize(rows)),
                                                    rows.size(), std::ssize(columns)) > plan::kUnevenRow
                          : plan::uneven(rows, 1, plan::kUnevenRow);
  return {true, uneven, longest, class_of(columns, std::ssize(rows)),
          static_cast<double>(beside) > (1 + density) / 2 * blocks};
}

std::int64_t Facts::digest() const noexcept {
  if (!known) return moving ? kMovingDigest : kUnknownDigest;
  if (moving) {
    Facts all = *this;
    all.moving = false;
    return kOfSome - all.digest();
  }
  const auto number = [](Longest longest) { return static_cast<std::int64_t>(longest); };
  return kFirstDigest + std::int64_t{uneven_rows} +
         2 * (number(longest_row) + kClasses * (number(longest_column) + kClasses * std::int64_t{banded}));
}

Facts Facts::of_digest(std::int64_t digest) noexcept {
  if (digest == kMovingDigest) {
    Facts facts;
    facts.moving = true;
    return facts;
  }
  if (digest < kMovingDigest && digest > kOfSome - kEndDigest) {
    Facts facts = of_digest(kOfSome - digest);
    facts.moving = true;
    return facts;
  }
  const std::int64_t number = digest - kFirstDigest;
  if (digest < kFirstDigest || digest >= kEndDigest) return {};
  return {true, number % 2 == 1, static_cast<Longest>(number / 2 % kClasses),
          static_cast<Longest>(number / 2 / kClasses % kClasses), number >= 2 * kClasses * kClasses};
}

}  // namespace sparseloom
