#include "plan/line_order.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <numeric>

namespace sparseloom::plan {
namespace {

using Word = std::uint64_t;

// Exchanging costs the square of the lines: 10 us for 64, 30 for 128. It saves 1 to 3 % there, .2 % of 512
// lines.
constexpr std::int64_t kMostExchanged = 128;

std::int64_t folded(const Lines& lines, LineGroups groups) {
  return (static_cast<std::int64_t>(lines.begin.size()) - 2 + groups.fold) / groups.fold;
}

/// A set of units for each line.
class UnitSets {
 public:
  UnitSets(const Lines& lines, LineGroups groups)
      : count_(static_cast<int>(folded(lines, groups))),
        words_(static_cast<int>((lines.extent + groups.span * 64 - 1) / (groups.span * 64))),
        bits_(static_cast<std::size_t>(count_) * static_cast<std::size_t>(words_)) {
    for (std::size_t i = 0; i + 1 < lines.begin.size(); ++i)
      for (std::int32_t at = lines.begin[i]; at < lines.begin[i + 1]; ++at) {
        const auto unit = static_cast<std::size_t>(lines.along[at]) / static_cast<std::size_t>(groups.span);
        of(static_cast<int>(i) / groups.fold)[unit / 64] |= Word{1} << unit % 64;
      }
  }
  int count() const { return count_; }
  int words() const { return words_; }
  Word* of(int line) {
    return bits_.data() + static_cast<std::size_t>(line) * static_cast<std::size_t>(words_);
  }
  const Word* of(int line) const { return const_cast<UnitSets*>(this)->of(line); }

 private:
  int count_, words_;
  std::vector<Word> bits_;
};

int size_of(const Word* a, int words) {
  int size = 0;
  for (int w = 0; w < words; ++w) size += std::popcount(a[w]);
  return size;
}

int size_of_union(const Word* a, const Word* b, int words) {
  int size = 0;
  for (int w = 0; w < words; ++w) size += std::popcount(a[w] | b[w]);
  return size;
}

int size_of_overlap(const Word* a, const Word* b, int words) {
  int size = 0;
  for (int w = 0; w < words; ++w) size += std::popcount(a[w] & b[w]);
  return size;
}

void unite(Word* a, const Word* b, int words) {
  for (int w = 0; w < words; ++w) a[w] |= b[w];
}

/// order[g * size ..]: lines of group g; the last group may be smaller.
std::vector<int> greedy(const UnitSets& sets, int size) {
  std::vector<int> free(static_cast<std::size_t>(sets.count())), units(free.size()), order;
  std::iota(free.begin(), free.end(), 0);
  for (const int line : free) units[static_cast<std::size_t>(line)] = size_of(sets.of(line), sets.words());
  const auto units_of = [&](int line) { return units[static_cast<std::size_t>(line)]; };
  std::stable_sort(free.begin(), free.end(), [&](int a, int b) { return units_of(a) > units_of(b); });
  order.reserve(free.size());
  std::vector<Word> together(static_cast<std::size_t>(sets.words()));
  while (!free.empty()) {
    auto next = free.begin();
    std::fill(together.begin(), together.end(), Word{0});
    for (int taken = 0; taken < size && !free.empty(); ++taken) {
      if (taken > 0) {
        // Units it adds less twice those it shares. By what it adds alone, the shortest line of all would
        // join the longest.
        int least = 0;
        for (auto at = free.begin(); at != free.end(); ++at) {
          const int cost = units_of(*at) - 3 * size_of_overlap(together.data(), sets.of(*at), sets.words());
          if (at == free.begin() || cost < least) next = at, least = cost;
        }
      }
      order.push_back(*next);
      unite(together.data(), sets.of(*next), sets.words());
      free.erase(next);
      next = free.begin();
    }
  }
  return order;
}

/// Exchanges lines between groups of two, each pair of groups once, where that saves units.
void exchange(const UnitSets& sets, std::vector<int>& order) {
  const auto together = [&](int a, int b) { return size_of_union(sets.of(a), sets.of(b), sets.words()); };
  for (std::size_t i = 0; i + 1 < order.size(); i += 2)
    for (std::size_t j = i + 2; j + 1 < order.size(); j += 2) {
      const int now = together(order[i], order[i + 1]) + together(order[j], order[j + 1]);
      const int crossed = together(order[i], order[j]) + together(order[i + 1], order[j + 1]);
      const int straight = together(order[i], order[j + 1]) + together(order[j], order[i + 1]);
      if (std::min(crossed, straight) < now)
        std::swap(order[i + 1], crossed < straight ? order[j] : order[j + 1]);
    }
}

int units_of_group(const UnitSets& sets, std::span<const int> group) {
  std::vector<Word> together(static_cast<std::size_t>(sets.words()));
  for (const int line : group) unite(together.data(), sets.of(line), sets.words());
  return size_of(together.data(), sets.words());
}

/// What is read and what is multiplied: 256 tokens of a unit of 128 bytes and their product with 64 outputs
/// take 410 and 350 clocks of an H200 (by least squares over blocks of 64, densities .1 to .5).
int cost_of_group(const UnitSets& sets, std::span<const int> group) {
  int cost = units_of_group(sets, group);
  for (const int line : group) cost += size_of(sets.of(line), sets.words());
  return cost;
}

/// Where the n-th costliest of `count` groups stands among them: costly and cheap ones alternate, the
/// costliest beside the cheapest. Sums of consecutive groups then differ little, wherever they begin.
int alternating(int n, int count) { return n < (count + 1) / 2 ? 2 * n : 2 * (count - n) - 1; }

/// Group i of the result is one of the i % step-th share: costliest first, each to the share that has least
/// and is not full (longest processing time first: Graham 1969). Of several shares, the groups of each
/// alternate: thread blocks that walk over them from different groups on stay in step, so that L2 keeps what
/// they read. Costliest first they are up to two tiles apart halfway, which over a reduction of 16384 read
/// 670 MB from memory where 281 are there (dx, blocks of 128 at .1: 212 us for 189). A smaller last group
/// stays last, where its place is.
std::vector<int> dealt(const UnitSets& sets, const std::vector<int>& order, int size, int step) {
  const int whole = static_cast<int>(order.size()) / size;
  std::vector<std::pair<int, int>> groups;  // - cost, number: costliest first, then as they were
  for (int g = 0; g < whole; ++g) {
    const std::span group =
        std::span(order).subspan(static_cast<std::size_t>(g * size), static_cast<std::size_t>(size));
    groups.emplace_back(-cost_of_group(sets, group), g);
  }
  std::sort(groups.begin(), groups.end());
  struct Share {
    int cost = 0, taken = 0, room;
  };
  std::vector<Share> shares;
  for (int i = 0; i < std::min(step, whole); ++i) shares.push_back({.room = (whole - i + step - 1) / step});
  std::vector<int> result = order;
  for (const auto& [cost, g] : groups) {
    Share* least = nullptr;
    for (Share& share : shares)
      if (share.taken < share.room && (least == nullptr || share.cost < least->cost)) least = &share;
    const int place = step > 1 ? alternating(least->taken, least->room) : least->taken;
    const auto index = static_cast<int>(least - shares.data()) + place * step;
    std::copy_n(order.begin() + g * size, size, result.begin() + index * size);
    least->cost -= cost;
    ++least->taken;
  }
  return result;
}

}  // namespace

std::vector<std::uint16_t> line_order(const Lines& lines, LineGroups groups) {
  const std::int64_t count = groups.lines < 1 ? 0 : folded(lines, groups);
  if (count < 2 || count > kMostOrderedLines || lines.along.empty()) return {};
  const UnitSets sets(lines, groups);
  std::vector<int> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  if (groups.lines > 1) order = greedy(sets, groups.lines);
  if (groups.lines == 2 && count <= kMostExchanged) exchange(sets, order);
  order = dealt(sets, order, groups.lines, groups.step);
  if (std::is_sorted(order.begin(), order.end())) return {};
  return {order.begin(), order.end()};
}

std::int64_t units_read(const Lines& lines, LineGroups groups, std::span<const std::uint16_t> order) {
  const UnitSets sets(lines, groups);
  std::vector<int> places(static_cast<std::size_t>(sets.count()));
  if (order.empty())
    std::iota(places.begin(), places.end(), 0);
  else
    std::copy(order.begin(), order.end(), places.begin());
  std::int64_t units = 0;
  for (std::size_t at = 0; at < places.size(); at += static_cast<std::size_t>(groups.lines))
    units += units_of_group(
        sets, {places.data() + at, std::min(static_cast<std::size_t>(groups.lines), places.size() - at)});
  return units;
}

}  // namespace sparseloom::plan
