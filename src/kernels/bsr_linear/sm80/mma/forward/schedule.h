// The schedule of sm80_mma for forward and dX, a function of the problem and the machine alone.
#pragma once

#include "plan/machine.h"
#include "sparseloom/plan.h"
#include "sparseloom/schedule.h"

namespace sparseloom::kernels::cuda::mma::forward {

/// The tile of tiles.h with the lowest predicted time, the block rows that a thread block takes in turn
/// (tiles_in_turn), and the thread blocks that share a block row (cluster). Empty if there is nothing to
/// compute.
Schedule schedule_of(const Problem& problem, const plan::Machine& machine);

}  // namespace sparseloom::kernels::cuda::mma::forward
