// What the row of sm90_decode shares with that of sm90_decode_lines.
#pragma once

#include "plan/machine.h"
#include "sparseloom/plan.h"
#include "sparseloom/refusal.h"

namespace sparseloom::kernels::cuda::decode90 {

/// The rate of the stored blocks as a stream, of the memory's nominal rate.
constexpr double kStream = 0.88;

/// narrow_tokens: the most tokens with blocks of 16 x 16.
Refusal refusal_of_both(const Problem& problem, const plan::Machine& machine, int narrow_tokens);
Refusal refuse_odd_columns(const Problem& problem);

}  // namespace sparseloom::kernels::cuda::decode90
