// The savings of a dense copy of W, which a caller may keep.
#pragma once

#include <optional>

#include "sparseloom/bsr_linear.h"
#include "sparseloom/executor.h"
#include "sparseloom/semi24_linear.h"

namespace sparseloom::ops {

/// Predicted microseconds of the plan's problem as the vendor's product with a dense copy of W, which needs
/// no scatter. Nothing if the plan's dense row refuses. `executor` is the one that the plan was made for.
SPARSELOOM_API std::optional<double> dense_copy_us(const Plan& plan, const Executor& executor);
SPARSELOOM_API std::optional<double> dense_copy_us(const ScaledPlan& plan, const Executor& executor);
SPARSELOOM_API std::optional<double> dense_copy_us(const Semi24Linear::Plan& plan, const Executor& executor);

}  // namespace sparseloom::ops
