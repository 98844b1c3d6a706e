// The rates of this machine.
#pragma once

#include <string>

#include "plan/machine.h"

namespace sparseloom::kernels {

/// Rates of this machine for the active instruction set, read from a file or measured on first use.
/// gemm_flops stays 0.
const plan::MachineRates& machine_rates();

/// Nominal rates of no particular machine, for the active instruction set: deterministic plans follow them,
/// so that they are the same everywhere. gemm_flops stays 0.
const plan::MachineRates& nominal_rates();

/// Where this machine's rates come from; see KnownRates::origin.
const std::string& machine_rates_origin();

}  // namespace sparseloom::kernels
