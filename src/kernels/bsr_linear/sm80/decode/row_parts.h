// What the row of sm80_decode shares with that of sm80_decode_staged.
#pragma once

#include <string>

#include "plan/candidate.h"
#include "sparseloom/plan.h"

namespace sparseloom::kernels::cuda {

std::string refuse_decode(const Problem& problem, const plan::Machine& machine);

}  // namespace sparseloom::kernels::cuda
