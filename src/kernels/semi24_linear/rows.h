// The rows of this library for the verb semi24_linear. LinearOf adds `dense` and `reference` behind them.
#pragma once

#include <span>

#include "sparseloom/semi24_linear.h"

namespace sparseloom::kernels {

using Semi24Row = Row<Semi24Linear>;

/// In order of preference at equal predictions. Empty on other machines than x86-64.
std::span<const Semi24Row> semi24_cpu_rows();

}  // namespace sparseloom::kernels
