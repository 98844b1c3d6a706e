// The hints about its block rows that a call on a CUDA device gets.
#pragma once

#include <cstdint>
#include <memory>

#include "plan/known_indices.h"
#include "sparseloom/layout.h"
#include "sparseloom/plan.h"

namespace sparseloom::ops {

/// The hints for a plan of this problem and schedule.groups, from the index that remember_index announced at
/// the addresses of `index`. Null if none was announced.
std::shared_ptr<const plan::BlockRowHints> block_row_hints(const CommonProblem& problem, Direction direction,
                                                           BlockRowGroups groups, const IndexView& index);

/// Gives an index of some blocks of another one on the same device that one's hints: an order of block rows
/// that suits all blocks suits some of them.
void share_hints(const IndexView& all, const std::int32_t* crow_of_some, int device);

}  // namespace sparseloom::ops
