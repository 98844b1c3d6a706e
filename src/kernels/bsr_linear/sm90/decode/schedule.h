// What the row of sm90_decode chooses, as a function of the problem and the machine alone.
#pragma once

#include "plan/machine.h"
#include "sparseloom/plan.h"
#include "sparseloom/schedule.h"

namespace sparseloom::kernels::cuda::decode90 {

/// The method, decode or decode_x_in_shared, the tile, and the thread blocks of a cluster, for a problem that
/// the row does not refuse. The cluster is 0 if the device runs none over whose thread blocks X fits.
Schedule schedule_of(const Problem& problem, const plan::Machine& machine);

}  // namespace sparseloom::kernels::cuda::decode90
