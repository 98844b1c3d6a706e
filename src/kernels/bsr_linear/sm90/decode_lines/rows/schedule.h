// The schedule of sm90_decode_lines, a function of the problem and the machine alone.
#pragma once

#include "plan/machine.h"
#include "sparseloom/plan.h"
#include "sparseloom/schedule.h"

namespace sparseloom::kernels::cuda::decode_lines::rows {

/// The method (rows or x_streamed), the tile, the block rows or strips that a thread block takes at once, and
/// the warps of each. For a problem that the row does not refuse.
Schedule schedule_of(const Problem& problem, const plan::Machine& machine);

}  // namespace sparseloom::kernels::cuda::decode_lines::rows
