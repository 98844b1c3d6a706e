// Predicted time of the dense row.
#pragma once

#include "plan/machine.h"
#include "sparseloom/linear_of.h"
#include "sparseloom/plan.h"

namespace sparseloom::kernels::dense {

/// Microseconds of the scatter of W (dW: the gather) and the vendor's dense product.
double predict_us(const Problem& problem, const plan::Machine& machine);
double predict_us(const ScaledProblem& problem, const plan::Machine& machine);

/// Microseconds of that product alone on a CUDA device, after a pass that wrote W: some of it is still in L2.
double product_us(const Problem& problem, const plan::Machine& machine);
/// Like the above for a weight in any layout: W is dense, whatever was stored.
double product_us(const LinearProblem& problem, const plan::Machine& machine);

/// Like the above for a W that a caller keeps dense, and that comes from DRAM in each call.
double copy_us(const Problem& problem, const plan::Machine& machine);
double copy_us(const LinearProblem& problem, const plan::Machine& machine);
double copy_us(const ScaledProblem& problem, const plan::Machine& machine);

}  // namespace sparseloom::kernels::dense
