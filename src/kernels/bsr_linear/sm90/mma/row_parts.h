// Shared by the rows of sm90_mma and sm90_mma_merged.
#pragma once

#include "plan/machine.h"
#include "sparseloom/plan.h"
#include "sparseloom/refusal.h"

namespace sparseloom::kernels::cuda::sm90_mma {

/// The kernel's refusals of a problem, whatever the number of blocks.
Refusal refusal_of_shape(const Problem& problem, const plan::Machine& machine);
/// The ring and the grid, for a problem that the kernel does not refuse.
Schedule schedule_of(const Problem& problem, const plan::Machine& machine);
double predict_us(const Problem& problem, const plan::Machine& machine);

}  // namespace sparseloom::kernels::cuda::sm90_mma
