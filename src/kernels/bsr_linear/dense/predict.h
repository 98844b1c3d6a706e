// Predicted time of the dense row.
#pragma once

#include "plan/machine.h"
#include "sparseloom/plan.h"

namespace sparseloom::kernels::dense {

/// Microseconds of the scatter of W (dW: the gather) and the vendor's dense product.
double predict_us(const Problem& problem, const plan::Machine& machine);
double predict_us(const ScaledProblem& problem, const plan::Machine& machine);

/// Microseconds of that product alone, for a caller that keeps W dense.
double product_us(const Problem& problem, const plan::Machine& machine);
double product_us(const ScaledProblem& problem, const plan::Machine& machine);

}  // namespace sparseloom::kernels::dense
