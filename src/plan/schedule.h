// How the stored blocks spread over rows and columns, as running cost: what threads cut into even shares.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sparseloom/layout.h"
#include "sparseloom/plan.h"

namespace sparseloom::plan {

/// Running cost over block rows (forward) or block columns (dx), [n + 1] entries from 0; empty for dw, whose
/// blocks all cost the same. Unit: one step along the reduction for one group of outputs. A kernel cuts [0,
/// last) into equal shares, one a thread, so that a skewed pattern balances without being sorted.
std::vector<std::int64_t> cost_prefix(Direction direction, const IndexView& index);

/// The same of a dynamic index (kDynamicVersion), whose plan cannot hold it, made anew in each call from
/// `starts`, crow (forward) or ccol (dx), at the end of a workspace that with_live_prefix made long enough.
/// Null for dw and on CUDA.
std::size_t with_live_prefix(std::size_t workspace_bytes, const Problem& problem);
const std::int64_t* live_prefix(const Plan& plan, const std::int32_t* starts, std::byte* workspace);

}  // namespace sparseloom::plan
