// The one list of all kernels.
#pragma once

#include <span>
#include <string>

#include "kernels/args.h"

namespace sparseloom::kernels {

/// Fast kernels, then `dense`, then `reference`. The order is the order of Plan::candidates and of
/// kernel_names().
std::span<const Kernel> registry();

/// The same rows as plan sees them.
std::span<const plan::KernelInfo> registry_info();

/// Rates of this machine for the instruction set in force, read or measured on first use; gemm_flops is left
/// 0.
const plan::MachineRates& machine_rates();

/// Where they come from, as KnownRates::origin.
const std::string& machine_rates_origin();

}  // namespace sparseloom::kernels
