// How one call is cut into tasks: by cost, so that skewed rows balance, and at strip boundaries, so that every output element is
// computed by one task in a fixed order, whatever the number of tasks.
#pragma once

#include <algorithm>
#include <cstdint>

namespace sparseloom::kernels::cpu {

struct Range {
  std::int64_t begin, end;
};

/// The task's even share of [0, total), without the overflow of total * task.
inline Range share(std::int64_t total, std::int64_t task, std::int64_t tasks) {
  const auto cut = [&](std::int64_t t) { return total / tasks * t + total % tasks * t / tasks; };
  return {cut(task), cut(task + 1)};
}

/// First unit whose cost starts at or after x. Unit u = block * subs + sub is sub `sub` of `subs` even parts of block `block`,
/// which costs prefix[block + 1] - prefix[block].
inline std::int64_t first_unit(const std::int64_t* prefix, std::int64_t blocks, std::int64_t subs, std::int64_t x) {
  if (x <= prefix[0]) return 0;
  const std::int64_t block = std::upper_bound(prefix, prefix + blocks + 1, x - 1) - prefix - 1;  // the last to start before x
  if (block >= blocks) return blocks * subs;
  const std::int64_t cost = prefix[block + 1] - prefix[block];
  // sub's start: cost * sub / subs, rounded down.
  std::int64_t sub = 0;
  while (sub < subs && prefix[block] + cost * sub / subs < x) ++sub;
  return block * subs + sub;
}

/// The units of copy `copy` (a panel of tokens, `weight` of total_weight vectors, `before` vectors ahead of it) that fall into a
/// share of the flat cost of all copies. prefix[blocks] > 0: every row costs something, if only to be written.
inline Range units_in_share(const std::int64_t* prefix, std::int64_t blocks, std::int64_t subs, std::int64_t before,
                            std::int64_t weight, Range flat) {
  const std::int64_t total = prefix[blocks];
  const std::int64_t start = total * before, stop = total * (before + weight);
  const auto unit = [&](std::int64_t position) {
    if (position <= start) return std::int64_t{0};
    if (position >= stop) return blocks * subs;
    return first_unit(prefix, blocks, subs, (position - start + weight - 1) / weight);
  };
  return {unit(flat.begin), unit(flat.end)};
}

}  // namespace sparseloom::kernels::cpu
