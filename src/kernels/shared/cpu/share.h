// The division of one call into tasks: by cost, so that uneven block rows balance, and at strip boundaries,
// so that one task computes each output element in a fixed order whatever the number of tasks.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/args.h"
#include "kernels/shared/cpu/cell.h"
#include "sparseloom/executor.h"

namespace sparseloom::kernels::cpu {

struct Range {
  std::int64_t begin, end;
};

/// The tasks of a call of `work`, a multiple of kTaskUs on one thread. If threads come late, a second one
/// must save as much time as it is late.
inline std::int64_t tasks_of(double work, const Executor& executor) {
  const double worth = work * kTaskUs / std::max(kTaskUs, executor.late_us);
  const auto most = static_cast<double>(std::max(1, executor.num_threads));
  return static_cast<std::int64_t>(std::clamp(worth, 1.0, most));
}

/// The task's even share of [0, total). The obvious total * task could overflow.
inline Range share(std::int64_t total, std::int64_t task, std::int64_t tasks) {
  const auto cut = [&](std::int64_t t) { return total / tasks * t + total % tasks * t / tasks; };
  return {cut(task), cut(task + 1)};
}

/// Cumulative cost over block rows (forward) or block columns (dx): costs[i] is the cost of those before i.
/// The unit is one step along the reduction for one group of outputs. It is computed from the index of each
/// call, so it also holds for a topology that moves.
struct RunningCosts {
  const std::int32_t* starts;  // crow (forward) or ccol (dx)
  std::int64_t steps;          // steps of one block along the reduction

  explicit RunningCosts(const MatmulArgs& args)
      : starts(args.direction == Direction::forward ? args.index.crow : args.transposed.ccol),
        steps(args.direction == Direction::forward ? args.index.block.cols : args.index.block.rows) {}

  // Writing an output tile costs about as much as this many reduction steps: transposing and storing 8
  // outputs x 48 tokens takes about 200 cycles, and a step is 24 FMAs, which take 12 to 24. The term also
  // keeps empty rows from counting as free.
  static constexpr std::int64_t kStoreSteps = 12;
  std::int64_t operator[](std::int64_t i) const { return starts[i] * steps + i * kStoreSteps; }
};

/// The first unit whose cost starts at or after x. Unit u = block * subs + sub is the range `sub` of `subs`
/// equal ranges of block row (or block column) `block`, which costs prefix[block + 1] - prefix[block].
/// Prefix: RunningCosts, or a pointer to [blocks + 1] cumulative costs.
template <class Prefix>
std::int64_t first_unit(const Prefix& prefix, std::int64_t blocks, std::int64_t subs, std::int64_t x) {
  if (x <= prefix[0]) return 0;
  if (x > prefix[blocks]) return blocks * subs;
  // The last block row to start before x, by binary search: prefix[block] < x <= prefix[last].
  std::int64_t block = 0;
  for (std::int64_t last = blocks; last - block > 1;) {
    const std::int64_t middle = block + (last - block) / 2;
    (prefix[middle] < x ? block : last) = middle;
  }
  const std::int64_t cost = prefix[block + 1] - prefix[block];
  // Range `sub` starts at cost * sub / subs, rounded down.
  std::int64_t sub = 0;
  while (sub < subs && prefix[block] + cost * sub / subs < x) ++sub;
  return block * subs + sub;
}

/// The units of work item `part` of `parts` items of equal cost. An item begins at a multiple of `multiple`
/// and, except the last, ends at one. prefix[blocks] is above 0: every block row has a cost, if only to be
/// written.
template <class Prefix>
Range units_of_part(const Prefix& prefix, std::int64_t blocks, std::int64_t subs, std::int64_t part,
                    std::int64_t parts, std::int64_t multiple = 1) {
  const Range costs = share(prefix[blocks], part, parts);
  const auto cut = [&](std::int64_t cost) {
    return cost >= prefix[blocks] ? blocks * subs
                                  : first_unit(prefix, blocks, subs, cost) / multiple * multiple;
  };
  return {cut(costs.begin), cut(costs.end)};
}

}  // namespace sparseloom::kernels::cpu
