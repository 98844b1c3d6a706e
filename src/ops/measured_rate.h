// Rates of dense products that an executor lends: measured once, and again if other work disturbed them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "sparseloom/dtype.h"

namespace sparseloom::ops {

/// What a rate belongs to: the callback, the dtype, the direction, the threads and sizes.
using RateKey = std::array<std::int64_t, 24>;

struct MeasuredRate {
  double rate = 0;         // per second
  bool disturbed = false;  // no second run confirms the fastest one, or it is implausibly slow
};

/// A product of some size: its work, and a call that does it.
struct TimedProduct {
  double work = 0;
  std::function<void()> run;
};

/// The rate of the first of these products, the largest first, that is not expected to take too long for a
/// measurement of some ten milliseconds.
MeasuredRate measure_within_budget(const std::vector<TimedProduct>& products);

/// The rate at which the time grows from the smaller product to the larger one: without what both take to lay
/// out the weight.
MeasuredRate measure_growth(const TimedProduct& larger, const TimedProduct& smaller);

/// Work of the smallest product that is worth timing.
inline constexpr double kFirstWork = 1 << 19;

/// The rate kept for the key, or else that of `measure`, which is called outside of the lock. A disturbed
/// rate is measured again by a call half a second later or more, and then ever more rarely.
double kept_rate(const RateKey& key, const std::function<MeasuredRate()>& measure);

/// Grows whenever a disturbed rate may be measured again: plans made before are then made again.
std::size_t rate_generation();

/// Memory for `elements` with small varied values: zeros and denormals have other speeds than ordinary data.
std::vector<std::byte> varied(DType dtype, std::int64_t elements);

}  // namespace sparseloom::ops
