// Orders block rows so that those multiplied together read the same K tiles of the dense operand.
#include "plan/block_row_order.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <numeric>

namespace sparseloom::plan {
namespace {

using Word = std::uint64_t;

// The time of exchange() grows with the square of the number of block rows. It is worth its time for few
// block rows only (measured; the log has the figures).
constexpr std::int64_t kMostExchanged = 128;

// The number of block rows after folding: the kernel's block rows.
std::int64_t folded(const BlockRows& block_rows, BlockRowGroups groups) {
  return (static_cast<std::int64_t>(block_rows.begin.size()) - 2 + groups.fold) / groups.fold;
}

/// The set of units that each folded block row reads, as bits.
class UnitSets {
 public:
  UnitSets(const BlockRows& block_rows, BlockRowGroups groups)
      : count_(static_cast<int>(folded(block_rows, groups))),
        words_(static_cast<int>((block_rows.extent + groups.span * 64 - 1) / (groups.span * 64))),
        bits_(static_cast<std::size_t>(count_) * static_cast<std::size_t>(words_)) {
    for (std::size_t i = 0; i + 1 < block_rows.begin.size(); ++i)
      for (std::int32_t at = block_rows.begin[i]; at < block_rows.begin[i + 1]; ++at) {
        const auto unit =
            static_cast<std::size_t>(block_rows.along[at]) / static_cast<std::size_t>(groups.span);
        of(static_cast<int>(i) / groups.fold)[unit / 64] |= Word{1} << unit % 64;
      }
  }
  int count() const { return count_; }
  int words() const { return words_; }
  Word* of(int block_row) {
    return bits_.data() + static_cast<std::size_t>(block_row) * static_cast<std::size_t>(words_);
  }
  const Word* of(int block_row) const { return const_cast<UnitSets*>(this)->of(block_row); }

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

/// Forms groups of `size` block rows one after the other: order[g * size ..] are the block rows of group g;
/// the last group may be smaller. The longest free block row begins a group. Then the free block row of the
/// lowest cost joins, until the group is full.
std::vector<int> greedy(const UnitSets& sets, int size) {
  std::vector<int> free(static_cast<std::size_t>(sets.count())), units(free.size()), order;
  std::iota(free.begin(), free.end(), 0);
  for (const int block_row : free)
    units[static_cast<std::size_t>(block_row)] = size_of(sets.of(block_row), sets.words());
  const auto units_of = [&](int block_row) { return units[static_cast<std::size_t>(block_row)]; };
  std::stable_sort(free.begin(), free.end(), [&](int a, int b) { return units_of(a) > units_of(b); });
  order.reserve(free.size());
  std::vector<Word> together(static_cast<std::size_t>(sets.words()));
  while (!free.empty()) {
    auto next = free.begin();
    std::fill(together.begin(), together.end(), Word{0});
    for (int taken = 0; taken < size && !free.empty(); ++taken) {
      if (taken > 0) {
        // The cost of a block row is the units that it adds to the group, minus twice those that it shares
        // with it. By the added units alone, the shortest block row of all would join the longest.
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

/// Exchanges block rows between groups of two if that saves units; each pair of groups is tried once.
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

/// The number of units that any block row of the group reads.
int units_of_group(const UnitSets& sets, std::span<const int> group) {
  std::vector<Word> together(static_cast<std::size_t>(sets.words()));
  for (const int block_row : group) unite(together.data(), sets.of(block_row), sets.words());
  return size_of(together.data(), sets.words());
}

/// The cost of a group: the units it reads plus the units its block rows multiply, with equal weight. On an
/// H200, 256 tokens of a unit of 128 bytes and their product with 64 outputs take 410 and 350 clocks (least
/// squares over blocks of 64, densities .1 to .5).
int cost_of_group(const UnitSets& sets, std::span<const int> group) {
  int cost = units_of_group(sets, group);
  for (const int block_row : group) cost += size_of(sets.of(block_row), sets.words());
  return cost;
}

/// The position of the n-th costliest of `count` groups. Costly and cheap groups alternate, the costliest
/// beside the cheapest, so that sums of consecutive groups differ little wherever they begin.
int alternating(int n, int count) { return n < (count + 1) / 2 ? 2 * n : 2 * (count - n) - 1; }

/// Distributes the groups over `step` shares: group i of the result belongs to share i % step. The costliest
/// group goes first, each to the share with the lowest cost that is not full (longest processing time first:
/// Graham 1969). With several shares, costly and cheap groups of each share alternate. Thread blocks that
/// walk over a share from different groups on then stay in step, so that L2 keeps their reads. Rejected:
/// costliest first within a share. The thread blocks drift apart halfway, and DRAM reads and time measured
/// much higher (the log has the figures). A smaller last group stays last.
std::vector<int> dealt(const UnitSets& sets, const std::vector<int>& order, int size, int step) {
  const int whole = static_cast<int>(order.size()) / size;
  // (-cost, group index): costliest first, then in the given order.
  std::vector<std::pair<int, int>> groups;
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

std::vector<std::uint16_t> block_row_order(const BlockRows& block_rows, BlockRowGroups groups) {
  const std::int64_t count = groups.block_rows < 1 ? 0 : folded(block_rows, groups);
  if (count < 2 || count > kMostOrderedBlockRows || block_rows.along.empty()) return {};
  const UnitSets sets(block_rows, groups);
  std::vector<int> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  if (groups.block_rows > 1) order = greedy(sets, groups.block_rows);
  if (groups.block_rows == 2 && count <= kMostExchanged) exchange(sets, order);
  order = dealt(sets, order, groups.block_rows, groups.step);
  if (std::is_sorted(order.begin(), order.end())) return {};
  return {order.begin(), order.end()};
}

std::int64_t units_read(const BlockRows& block_rows, BlockRowGroups groups,
                        std::span<const std::uint16_t> order) {
  const UnitSets sets(block_rows, groups);
  std::vector<int> places(static_cast<std::size_t>(sets.count()));
  if (order.empty())
    std::iota(places.begin(), places.end(), 0);
  else
    std::copy(order.begin(), order.end(), places.begin());
  std::int64_t units = 0;
  for (std::size_t at = 0; at < places.size(); at += static_cast<std::size_t>(groups.block_rows))
    units += units_of_group(sets, {places.data() + at, std::min(static_cast<std::size_t>(groups.block_rows),
                                                                places.size() - at)});
  return units;
}

}  // namespace sparseloom::plan
