// How the stored blocks spread over rows and columns, as running cost: what threads cut into even shares.
#pragma once

#include <cstdint>
#include <vector>

#include "sparseloom/layout.h"
#include "sparseloom/plan.h"

namespace sparseloom::plan {

/// Running cost over block rows (forward) or block columns (dx), [n + 1] entries from 0; empty for dw, whose blocks all cost the
/// same. Unit: one step along the reduction for one group of outputs. A kernel cuts [0, last) into equal shares, one a thread, so
/// that a skewed pattern balances without being sorted.
std::vector<std::int64_t> cost_prefix(Direction direction, const IndexView& index);

}  // namespace sparseloom::plan
