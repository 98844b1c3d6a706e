// The list of all kernels, from which the plan chooses, and the rates of this machine.
#pragma once

#include <span>
#include <string>

#include "kernels/bsr_linear/verb.h"

namespace sparseloom::kernels {

/// The fast kernels, then `dense`, then `reference`, then those from outside (sparseloom/extension.h). Rows
/// keep their number; Plan::candidates and kernel_names() have this order. A span that was returned stays
/// valid.
std::span<const Kernel> registry();

/// Rates of this machine for the active instruction set, read from a file or measured on first use.
/// gemm_flops stays 0.
const plan::MachineRates& machine_rates();

/// Where those rates come from; see KnownRates::origin.
const std::string& machine_rates_origin();

}  // namespace sparseloom::kernels
