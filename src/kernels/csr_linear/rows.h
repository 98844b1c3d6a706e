// The rows of this library for the verb csr_linear. LinearOf adds `dense` and `reference` behind them.
#pragma once

#include <span>

#include "sparseloom/csr_linear.h"

namespace sparseloom::kernels {

using CsrRow = Row<CsrLinear>;

/// In order of preference at equal predictions. Empty on other machines than x86-64.
std::span<const CsrRow> csr_cpu_rows();

}  // namespace sparseloom::kernels
