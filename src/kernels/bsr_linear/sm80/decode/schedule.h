// The schedule of sm80_decode, a function of the problem and the machine alone, and what its row shares with
// that of sm80_decode_staged.
#pragma once

#include "plan/machine.h"
#include "sparseloom/plan.h"
#include "sparseloom/refusal.h"
#include "sparseloom/schedule.h"

namespace sparseloom::kernels::cuda::decode {

/// The tile and the warps of a thread block, for a problem that the row does not refuse. Empty if there is
/// nothing to compute.
Schedule schedule_of(const Problem& problem, const plan::Machine& machine);

}  // namespace sparseloom::kernels::cuda::decode

namespace sparseloom::kernels::cuda {

Refusal refuse_decode(const Problem& problem, const plan::Machine& machine);

}  // namespace sparseloom::kernels::cuda
