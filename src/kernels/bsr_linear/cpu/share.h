// How one call is cut into tasks: by cost, so that uneven block rows balance, and at strip boundaries, so
// that one task computes each output element in a fixed order whatever the number of tasks.
#pragma once

#include <algorithm>
#include <cstdint>

namespace sparseloom::kernels::cpu {

struct Range {
  std::int64_t begin, end;
};

/// The task's even share of [0, total). The obvious total * task could overflow.
inline Range share(std::int64_t total, std::int64_t task, std::int64_t tasks) {
  const auto cut = [&](std::int64_t t) { return total / tasks * t + total % tasks * t / tasks; };
  return {cut(task), cut(task + 1)};
}

/// The first unit whose cost starts at or after x. Unit u = block * subs + sub is part `sub` of `subs` equal
/// parts of block row (or block column) `block`, which costs prefix[block + 1] - prefix[block].
inline std::int64_t first_unit(const std::int64_t* prefix, std::int64_t blocks, std::int64_t subs,
                               std::int64_t x) {
  if (x <= prefix[0]) return 0;
  // The last block row to start before x.
  const std::int64_t block = std::upper_bound(prefix, prefix + blocks + 1, x - 1) - prefix - 1;
  if (block >= blocks) return blocks * subs;
  const std::int64_t cost = prefix[block + 1] - prefix[block];
  // Part `sub` starts at cost * sub / subs, rounded down.
  std::int64_t sub = 0;
  while (sub < subs && prefix[block] + cost * sub / subs < x) ++sub;
  return block * subs + sub;
}

/// The units of work item `part` of `parts` items of equal cost. An item begins at a multiple of `multiple`
/// and, except the last, ends at one. prefix[blocks] is above 0: every block row costs something, if only to
/// be written.
inline Range units_of_part(const std::int64_t* prefix, std::int64_t blocks, std::int64_t subs,
                           std::int64_t part, std::int64_t parts, std::int64_t multiple = 1) {
  const Range costs = share(prefix[blocks], part, parts);
  const auto cut = [&](std::int64_t cost) {
    return cost >= prefix[blocks] ? blocks * subs
                                  : first_unit(prefix, blocks, subs, cost) / multiple * multiple;
  };
  return {cut(costs.begin), cut(costs.end)};
}

}  // namespace sparseloom::kernels::cpu
