// The CPU rows of this library for the verbs semi24_linear and semi24_scaled_linear.
#pragma once

#include <span>

#include "sparseloom/semi24_linear.h"
#include "sparseloom/semi24_scaled.h"

namespace sparseloom::kernels {

using Semi24Row = Row<Semi24Linear>;
using Semi24ScaledRow = Row<Semi24Scaled>;

/// In order of preference at equal predictions. LinearOf adds `dense` and `reference` behind them. Empty on
/// other machines than x86-64.
std::span<const Semi24Row> semi24_cpu_rows();

/// All rows of the CPU, `reference` among them.
std::span<const Semi24ScaledRow> semi24_scaled_cpu_rows();

}  // namespace sparseloom::kernels
