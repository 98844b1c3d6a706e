// How the stored blocks spread over block rows and block columns, as a running cost that threads divide into
// even shares.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sparseloom/layout.h"
#include "sparseloom/plan.h"

namespace sparseloom::plan {

/// Running cost over block rows (forward) or block columns (dx): [n + 1] entries, the first of which is 0.
/// Empty for dw, whose blocks all cost the same. The unit is one step along the reduction for one group of
/// outputs. A kernel divides [0, last entry) into equal shares, one for each thread, so a skewed pattern
/// balances without being sorted.
std::vector<std::int64_t> cost_prefix(Direction direction, const IndexView& index);

/// The same for a dynamic index (kDynamicVersion), whose plan cannot hold it. live_prefix makes it anew in
/// each call from `starts`, which is crow (forward) or ccol (dx), and writes it to the end of the workspace.
/// with_live_prefix gives the length of a workspace with room for it. Null for dw and on CUDA.
std::size_t with_live_prefix(std::size_t workspace_bytes, const Problem& problem);
const std::int64_t* live_prefix(const Plan& plan, const std::int32_t* starts, std::byte* workspace);

}  // namespace sparseloom::plan
