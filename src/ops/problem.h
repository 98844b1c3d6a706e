// The preparation of both verbs' problems before a plan is looked up.
#pragma once

#include "sparseloom/executor.h"
#include "sparseloom/layout.h"
#include "sparseloom/plan.h"

namespace sparseloom::ops {

/// Copies shape and blocks from the index.
void describe_index(const IndexView& index, DType dtype, std::int64_t m, CommonProblem& problem);

/// Completes the problem, which is part of the cache key, from the executor, and resets what has no effect
/// there. Throws Error if the problem does not match the index.
void complete(CommonProblem& problem, const IndexView& index, const Executor& executor);

/// Validates an index in host memory, so that one which does not fit the problem (an x with other features,
/// say) cannot reach a kernel. Throws Error. An index on a device is not read: see require_valid_on_device.
void require_valid(const CommonProblem& problem, const IndexView& index);

}  // namespace sparseloom::ops
