// The preparation of both verbs' problems before a plan is looked up.
#pragma once

#include <cstdint>

#include "sparseloom/executor.h"
#include "sparseloom/layout.h"
#include "sparseloom/plan.h"

namespace sparseloom::ops {

/// Copies shape and blocks from the index.
void describe_index(const IndexView& index, DType dtype, std::int64_t m, CommonProblem& problem);

/// Whether a matrix [rows, features] with nothing between its rows is aligned (is_aligned, at an aligned
/// address). Rows below 0, which complete() refuses, count as none: their bytes could overflow.
bool packed_is_aligned(DType dtype, std::int64_t rows, std::int64_t features);

/// Completes the problem, which is part of the cache key, from the executor, and resets what has no effect
/// there. Throws Error if the problem does not match the index.
void complete(CommonProblem& problem, const IndexView& index, const Executor& executor);

/// Validates an index in host memory, so that one which does not fit the problem (an x with other features,
/// say) cannot reach a kernel. Throws Error. An index on a device is not read: see require_valid_on_device.
void require_valid(const CommonProblem& problem, const IndexView& index);

}  // namespace sparseloom::ops
