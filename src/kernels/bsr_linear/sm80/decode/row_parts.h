// What the row of sm80_decode shares with that of sm80_decode_staged.
#pragma once

#include "plan/machine.h"
#include "sparseloom/plan.h"
#include "sparseloom/refusal.h"

namespace sparseloom::kernels::cuda {

Refusal refuse_decode(const Problem& problem, const plan::Machine& machine);

}  // namespace sparseloom::kernels::cuda
