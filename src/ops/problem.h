// What is done with the problems of both verbs before a plan is looked up.
#pragma once

#include "sparseloom/executor.h"
#include "sparseloom/layout.h"
#include "sparseloom/plan.h"

namespace sparseloom::ops {

/// Takes shape and blocks from the index.
void describe_index(const IndexView& index, DType dtype, std::int64_t m, CommonProblem& problem);

/// Completes the problem, which is part of the cache key, from the executor, and ignores what has no effect
/// there. Throws Error if it is not the index's.
void complete(CommonProblem& problem, const IndexView& index, const Executor& executor);

/// Validates an index of host memory, so that one which does not fit the problem (an x with other features,
/// say) cannot reach a kernel. Throws Error. Of an index on a device nothing is read: see
/// require_valid_on_device.
void require_valid(const CommonProblem& problem, const IndexView& index);

}  // namespace sparseloom::ops
