// Predicted time of dW by wgmma, for the rows that it serves.
#pragma once

#include "kernels/bsr_linear/sm90/wgmma/dw/deal.h"
#include "kernels/shared/cost/cost_terms.h"
#include "sparseloom/plan.h"

namespace sparseloom::kernels::cuda::wgmma::dw {

/// Microseconds: the time that is expected for the work items, or that of the memory
/// traffic if it is longer.
double predict_us(const Problem& problem, const Device& device, const StepShape& step, bool narrow);

}  // namespace sparseloom::kernels::cuda::wgmma::dw
