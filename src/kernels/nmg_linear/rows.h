// The rows of this library for the verb nmg_linear. LinearOf adds `dense` and `reference` after them.
#pragma once

#include <span>

#include "sparseloom/nmg_linear.h"

namespace sparseloom::kernels {

/// In order of preference at equal predictions. Empty on other machines than x86-64.
std::span<const Row<NmgLinear>> nmg_cpu_rows();

/// dW on any machine.
extern const Row<NmgLinear> kNmgDenseDw;

}  // namespace sparseloom::kernels
